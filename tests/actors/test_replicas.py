"""The harness itself: what happens to a process among several happens to a replica in it."""

import trio

from actors.ports import Failed, Refused
from tests.support.harness import Gateway, open_replica_maker, open_replicas
from tests.support.mcp_backend import Backend
from tests.support.store_calls import ask


class Heard:
    """A listener that writes down what it hears."""

    def __init__(self, gateway: Gateway) -> None:
        self.letters: list[bytes] = []
        self.renamed: list[tuple[str, str]] = []
        self.certain = self.losses = 0
        self.down: list[tuple[float, str]] = []
        gateway.services.cluster.subscribe(self)

    def on_mail(self, letters):
        self.letters += letters

    def on_renamed(self, former, now):
        self.renamed.append((former, now))

    def on_loss(self):
        self.losses += 1

    def on_certain(self):
        self.certain += 1

    def on_down(self, incarnation):
        self.down.append((trio.current_time(), incarnation))


def http(**more) -> Backend:
    return Backend("alpha", kind="http", **more)


async def test_a_session_whose_replica_was_killed_goes_on_at_another_when_the_lease_has_run_out(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        assert await client.tool("echo") == "alpha: echo"
        heard, name, killed = Heard(two), one.services.cluster.incarnation, trio.current_time()
        one.kill()
        client.to(two)
        await trio.sleep(2.9)
        assert (await ask(two.services.cluster.alive, name)) is True
        await trio.sleep(0.7)
        assert heard.down == [(killed + 3.5, name)]
        assert await client.tool("echo") == "alpha: echo"
        [key] = two.actors.sessions.table
        assert (await ask(two.store.owned, two.services.cluster.incarnation, 0)) == ([key], 0)
        assert (await ask(two.store.owned, name, 0)) == ([], 0)
    assert alpha.upstreams[0].transport.closed


async def test_a_replica_that_was_seen_to_end_is_dead_at_once(autojump_clock):
    async with open_replicas(2, http()) as (one, two):
        client, heard = await one.connect("alpha"), Heard(two)
        one.kill(at_once=True)
        await two.settle()
        assert [name for _, name in heard.down] == [one.services.cluster.incarnation]
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"


async def test_what_a_killed_replica_had_under_way_is_not_done(autojump_clock):
    alpha = http(tools=("slow",), held={"slow"})
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        call = client.begin("tools/call", {"name": "slow"})
        request = await alpha.next()
        one.kill()
        request.text("too late")
        await call.end()
        assert call.status is None
        assert not request.cancelled.is_set()
        record = next(iter(two.store.records().values()))
        assert record.owner == one.services.cluster.incarnation


async def test_a_paused_replica_answers_nobody_until_it_goes_on_under_another_name(autojump_clock):
    alpha = http(tools=("slow",), held={"slow"})
    async with open_replicas(2, alpha) as (one, two):
        client, heard, other = await one.connect("alpha"), Heard(one), Heard(two)
        call = client.begin("tools/call", {"name": "slow"})
        request, before = await alpha.next(), one.services.cluster.incarnation
        await one.pause()
        paused = trio.current_time()
        request.text("done")
        late = client.begin("tools/list")
        await trio.sleep(60)
        assert one.services.cluster.doubtful
        assert call.status is late.status is None
        assert other.down == [(paused + 3.5, before)]
        await one.resume()
        assert heard.renamed == [(before, one.services.cluster.incarnation)]
        assert (one.store.owner, heard.certain) == (one.services.cluster.incarnation, 1)
        assert not one.services.cluster.doubtful
        await call.result()
        await late.result()


async def test_a_short_pause_costs_no_more_than_a_doubt(autojump_clock):
    async with open_replicas(2, http()) as (one, two):
        heard, other, before = Heard(one), Heard(two), one.services.cluster.incarnation
        await one.pause()
        await trio.sleep(2.5)
        assert one.services.cluster.doubtful
        await one.resume()
        await trio.sleep(60)
        assert (heard.certain, heard.renamed, other.down) == (1, [], [])
        assert one.services.cluster.incarnation == before


async def test_a_replica_that_is_cut_off_works_on_in_doubt(autojump_clock):
    async with open_replicas(2, http()) as (one, two):
        client, heard, before = await one.connect("alpha"), Heard(two), one.services.cluster.incarnation
        one.life.store.replica.cut_off()
        await trio.sleep(1.9)
        assert not one.services.cluster.doubtful
        await trio.sleep(5)
        assert one.services.cluster.doubtful
        assert [name for _, name in heard.down] == [before]
        assert await client.call("ping") == {}


async def test_mail_comes_in_order_and_may_be_lost_doubled_or_late(autojump_clock):
    async with open_replicas(2, http()) as (one, two):
        heard, post = Heard(two), one.services.cluster.post
        to, office = two.services.cluster.incarnation, one.life.store.replica
        for letter, copies in ((b"1", (0.0,)), (b"2", ()), (b"3", (0.0, 0.0)), (b"4", (1.0,)), (b"5", (0.0,))):
            office.post_office = lambda to, letter, copies=copies: copies
            assert isinstance(await ask(post, to, letter), str)
        await two.settle()
        assert heard.letters == [b"1", b"3", b"3"]
        await trio.sleep(1.1)
        assert heard.letters == [b"1", b"3", b"3", b"4", b"5"]


async def test_a_replica_that_starts_later_hears_of_those_that_died_before(autojump_clock):
    async with open_replica_maker(http()) as start:
        one = await start()
        await one.connect("alpha")
        one.kill(at_once=True)
        two = await start()
        heard = Heard(two)
        await two.settle()
        assert [name for _, name in heard.down] == [one.services.cluster.incarnation]
        assert await ask(two.services.cluster.post, one.services.cluster.incarnation, b"") == Failed(
            Refused.DEAD, "nobody reads this inbox"
        )
