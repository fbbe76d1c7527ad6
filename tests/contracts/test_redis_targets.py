"""The other shapes of Redis: a cluster, and a primary that a sentinel names."""

import inspect
import itertools
import re
from contextlib import AsyncExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from redis.crc import key_slot

from actors.ports import NO_DELTAS, Grant, Record, Refused, StreamHead
from gateway.store.redis import StoreDenied, StoreUnreachable, StoreUrlError, targets, writer
from gateway.store.redis.checks import CLUSTER_RIGHTS, RIGHTS
from gateway.store.redis.errors import LinkDown
from gateway.store.redis.links import open_link
from gateway.store.redis.loop_links import open_loop_link
from gateway.store.redis.scripts import SCRIPTS
from gateway.store.redis.targets import parse
from tests.support.redis_cluster import SLOTS, RedisCluster
from tests.support.redis_server import MISSING, installed
from tests.support.store_calls import Lines, Outcomes, data_of, eventually, refused

pytestmark = pytest.mark.redis


@pytest.fixture
def nodes():
    """Two primaries that share the slots."""
    if not installed():
        pytest.skip(MISSING)
    with RedisCluster(2) as cluster:
        yield cluster.nodes


async def test_the_keys_of_a_session_share_a_node_of_a_cluster(
    nodes, opened, ask, new_key, lives_through, mails_itself
):
    async with opened(f"redis+cluster://127.0.0.1:{nodes[0].port}") as store:
        for _ in range(8):
            await lives_through(store, ask, new_key())
        for node in nodes:
            with node.client() as client:
                client.script_flush()
        for _ in range(8):
            await lives_through(store, ask, new_key())
        await mails_itself(store, ask)
    counts = []
    for node in nodes:
        with node.client() as client:
            counts.append(len(client.keys("sd:*:s")))
    assert sum(counts) == 16


async def test_replicas_find_each_other_on_a_cluster(nodes, opened, ask, new_key):
    """Their keys are on different nodes."""
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
    async with opened(url) as two:
        async with opened(url) as one:
            key = new_key()
            grant = await ask(one.create, key, {})
            await eventually(lambda: one.owner in two.directory.known)
            assert await ask(two.alive, one.owner) is True
            found = {replica.incarnation for replica in await ask(two.replicas) if replica.alive}
            assert found == {one.owner, two.owner}
            assert await ask(two.owned, one.owner, 0) == ([key], 0)
        await eventually(lambda: one.owner in two.directory.dead)
        claimed, _ = await ask(two.claim, key, one.owner, grant.epoch, "n")
        assert claimed.owner == two.owner
        two.disown(one.owner, [key])
        assert one.owner not in [replica.incarnation for replica in await ask(two.replicas)]


async def test_a_slot_that_moved_is_followed(nodes, opened, ask, new_key, lives_through):
    async with opened(f"redis+cluster://127.0.0.1:{nodes[0].port}") as store:
        with nodes[0].client() as one, nodes[1].client() as two:
            key = new_key()
            while (slot := one.execute_command("CLUSTER", "KEYSLOT", f"sd:{{{key}}}:s")) > 8191:
                key = new_key()
            target = two.execute_command("CLUSTER", "MYID").decode()
            for client in (two, one):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target)
        await lives_through(store, ask, key)
        with nodes[1].client() as two:
            assert two.exists(f"sd:{{{key}}}:s")


@pytest.mark.parametrize("open_one", [open_link, open_loop_link])
async def test_a_node_that_is_no_more_is_not_asked_for_when_functions_are_loaded(nodes, monkeypatch, open_one):
    """Its address may be one where nothing answers, and functions are loaded every moment while a slot moves."""
    link = open_one(parse(f"redis+cluster://127.0.0.1:{nodes[0].port}"))

    async def settled(call):
        return await call if inspect.isawaitable(call) else call

    everywhere = [("GET", f"sd:{number}") for number in range(8)]
    assert await settled(link.exchange(everywhere)) == 8 * [None]
    nodes[1].kill()
    with pytest.raises(LinkDown):
        await settled(link.exchange(everywhere))
    with monkeypatch.context() as patch:
        patch.setattr(targets.Target, "connection", lambda self, address: pytest.fail(f"{address} was dialled"))
        await settled(link.prepare())
    link.close()


def keys_of(cluster, pattern):
    """Those on any of the primaries."""
    found = []
    for node in cluster.nodes:
        with node.client() as client:
            found += client.keys(pattern)
    return found


MOVING = {
    "touch": lambda store, key, grant, done: store.touch(key, grant, done),
    "claim": lambda store, key, grant, done: store.claim(key, grant.owner, grant.epoch, "n", done),
    "append": lambda store, key, grant, done: store.append(key, grant, "p2", 2, [b"2"], done, finish=True),
    "save": lambda store, key, grant, done: store.save(key, grant, 2, NO_DELTAS, done),
    "release": lambda store, key, grant, done: store.release(key, grant, done),
    "end": lambda store, key, grant, done: store.end(key, grant, "closed", done),
    "delete": lambda store, key, grant, done: store.delete(key, grant, done),
}


@pytest.mark.parametrize("call", MOVING)
async def test_what_a_function_needs_of_a_log_that_has_moved_is_waited_for(call, cluster, opened, ask, session):
    """The record is still where it was, so Redis begins the function, and breaks it off at the log."""
    async with opened(cluster.url) as store:
        key, grant = await session(store)
        assert await ask(store.open, key, grant, "p2", {}, b"1") is None
        record, outcomes = f"sd:{{{key}}}:s", Outcomes()
        with closing(cluster.client()) as client:
            client.hset(record, "kept", "an eighth ago")
        with cluster.moving(key_slot(record.encode())) as move:
            move(f"sd:{{{key}}}:l:p1")
            MOVING[call](store, key, grant, outcomes)
            await trio.sleep(0.3)
            # What these two are about comes first, so that they find it done when they are made again.
            assert outcomes.all == [] or call in ("claim", "release")
            move(f"sd:{{{key}}}:l:p2")
            move(record)
        [outcome] = await outcomes.wait(1)
        assert outcome is None or call == "claim"
        found = await ask(store.read, key)
        match call:
            case "end" | "delete":
                assert refused(found) is {"end": Refused.ENDED, "delete": Refused.GONE}[call]
                assert keys_of(cluster, f"sd:{{{key}}}:l:*") == []
            case "append":
                assert (found.streams["p2"].seq, found.streams["p2"].finished) == (2, True)
            case "save":
                assert found.rev == 2
            case "claim":
                assert (found.owner, found.epoch, found.tries) == (store.owner, outcome[0].epoch, 1)
            case "release":
                assert found.owner is None


async def test_what_was_read_before_its_slot_moved_is_read_again_after(cluster, opened, session):
    """Whoever reads logs has asked for the slots before."""
    async with opened(cluster.url) as store:
        key, _ = await session(store)
        assert await data_of(store, key) == [b"1"]
        record = f"sd:{{{key}}}:s"
        with cluster.moving(key_slot(record.encode())) as move:
            for moved in (f"sd:{{{key}}}:l:p1", record):
                move(moved)
                assert refused(await store.replay(key, "p1", 0, 0, 10)) is Refused.AWAY
        assert await data_of(store, key) == [b"1"]


async def test_a_record_restored_while_its_slot_moves_is_restored_whole(cluster, opened, ask, session):
    async with opened(cluster.url) as store:
        key, grant = await session(store)
        head = StreamHead(5, opener=grant.epoch)
        mine = Record(grant.owner, grant.epoch, 4, 0, {"state": b"kept"}, {"q": b"kept"}, {}, {"p3": head})
        outcomes = Outcomes()
        with cluster.moving(key_slot(f"sd:{{{key}}}:s".encode())) as move:
            store.restore(key, grant, 4, mine, outcomes)
            await trio.sleep(0.3)
            assert outcomes.all == []
            move(f"sd:{{{key}}}:l:p1")
            move(f"sd:{{{key}}}:s")
        assert await outcomes.wait(1) == [None]
        found = await ask(store.read, key)
        assert (found.rev, found.fields, found.requests) == (4, mine.fields, mine.requests)
        assert found.streams["p3"].seq == 5


async def test_a_primary_of_a_cluster_that_dies_is_followed_to_its_replica(opened, ask, session):
    if not installed():
        pytest.skip(MISSING)
    with RedisCluster(3, replicas=1) as cluster:
        async with opened(cluster.url) as store:
            sessions = [await session(store) for _ in range(8)]
            cluster.nodes[0].kill()
            for key, grant in sessions:
                for seq in (2, 3):
                    for _ in range(6):
                        outcome = await ask(store.append, key, grant, "p1", seq, [b"%d" % seq])
                        if outcome is None:
                            break
                        assert refused(outcome) is Refused.AWAY
                    assert outcome is None
            for key, _ in sessions:
                assert await data_of(store, key) == [b"1", b"2", b"3"]


@pytest.fixture
def cluster_of_three(monkeypatch):
    """In which nobody takes the place of a primary that hangs."""
    if not installed():
        pytest.skip(MISSING)
    monkeypatch.setattr(targets, "REPLY_TIMEOUT", 0.5)
    with RedisCluster(3) as cluster:
        for node in cluster.nodes:
            with node.client() as client:
                client.config_set("cluster-node-timeout", 60_000)
        yield cluster


def shard_of(name):
    """Which of three primaries has the keys of a session, or of a replica."""
    return key_slot(name.encode()) * 3 // SLOTS


async def test_a_primary_that_hangs_holds_up_nothing_that_goes_to_the_others(cluster_of_three, opened, ask, session):
    async with opened(cluster_of_three.url, hold=60.0) as store:
        of = {}
        while len(of) < 3:
            key, grant = await session(store)
            of[shard_of(key)] = key, grant
        cluster_of_three.nodes[0].pause()
        stuck, done = Outcomes(), Outcomes()
        store.append(*of[0], "p1", 2, [b"2"], stuck)
        await eventually(lambda: store.state == "away")
        for seq, other in itertools.product((2, 3), (1, 2)):
            store.append(*of[other], "p1", seq, [b"%d" % seq], done)
        assert await done.wait(4) == [None] * 4
        for other in (1, 2):
            assert await data_of(store, of[other][0]) == [b"1", b"2", b"3"]
        first, *others = await ask(store.heads, [(of[shard][0], "p1") for shard in range(3)])
        assert refused(first) is Refused.AWAY
        assert [head.seq for head in others] == [3, 3], "what the others know is said"
        assert stuck.all == []
        cluster_of_three.nodes[0].go_on()
        assert await stuck.wait(1) == [None]
        await eventually(lambda: store.state == "ok")
        for other in range(3):
            assert await ask(store.append, *of[other], "p1", 3 + (other > 0), [b"last"]) is None


async def test_a_primary_that_hangs_costs_no_lease_but_its_own(cluster_of_three, opened, monkeypatch):
    """Each replica looks after the leases of the others, on all primaries."""
    monkeypatch.setattr(targets, "REPLY_TIMEOUT", 3.0)
    async with AsyncExitStack() as stack:
        of = {}
        while len(of) < 2:
            store = await stack.enter_async_context(opened(cluster_of_three.url))
            of.setdefault(shard_of(store.owner), store)
        (_, lives), (shard, other) = of.items()
        name, told = lives.owner, Outcomes()
        cluster_of_three.nodes[shard].pause()
        for _ in range(3):
            lives.alive(other.owner, told)
            await told.wait(1)
            told.all.clear()
        assert lives.owner == name
        cluster_of_three.nodes[shard].go_on()


async def test_nothing_is_made_before_it_is_known_as_owned(cluster_of_three, opened, ask, new_key, monkeypatch):
    """What a replica may own is on another primary than the session. While that one is away no session is made."""
    monkeypatch.setattr(writer, "PATIENCE", 0.3)
    async with opened(cluster_of_three.url) as store:
        shard = shard_of(store.owner)
        while shard_of(key := new_key()) == shard:
            pass
        cluster_of_three.nodes[shard].pause()
        assert refused(await ask(store.create, key, {})) is Refused.AWAY
        assert refused(await ask(store.read, key)) is Refused.GONE
        cluster_of_three.nodes[shard].go_on()
        await eventually(lambda: store.state == "ok")
        assert isinstance(await ask(store.create, key, {}), Grant)
        assert key in (await ask(store.owned, store.owner, 0))[0]


async def test_a_cluster_that_does_not_answer_is_unreachable(opened):
    with pytest.raises(StoreUnreachable):
        async with opened("redis+cluster://127.0.0.1:1"):
            pass


def test_sentinels_that_do_not_answer_are_asked_seldom_and_the_one_that_does_first(monkeypatch):
    """Each costs a timeout, and the store asks every second."""
    asked: list[str] = []
    now = [100.0]
    monkeypatch.setattr(targets, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def sentinel(name: str) -> Any:
        def execute_command(*command: str) -> Any:
            asked.append(name)
            assert command == ("SENTINEL GET-MASTER-ADDR-BY-NAME", "main")
            if name in silent:
                raise TimeoutError(name)
            return (b"10.0.0.1", 6379)

        return SimpleNamespace(execute_command=execute_command, close=lambda: None)

    silent = {"a", "b"}
    pool = SimpleNamespace(service_name="main", sentinel_manager=SimpleNamespace(sentinels=[*map(sentinel, "abc")]))
    sentinels = targets.Sentinels(pool)
    primary, other = (SimpleNamespace(host=f"10.0.0.{n}", port=6379) for n in (1, 2))
    assert sentinels.agree(primary)
    assert not sentinels.agree(other)
    assert asked == ["a", "b", "c", "c"]
    silent.add("c")
    asked.clear()
    assert all(sentinels.agree(other) for _ in range(5)), "nobody says otherwise"
    assert sorted(asked) == ["a", "b", "c"]
    now[0] += targets.SILENT
    silent.clear()
    assert not sentinels.agree(other)


async def test_a_primary_is_found_by_its_sentinel(
    start_server, start_sentinel, opened, ask, new_key, lives_through, mails_itself
):
    sentinel = await start_sentinel(start_server().port)
    async with opened(sentinel.url) as store:
        await lives_through(store, ask, new_key())
        await mails_itself(store, ask)
    with pytest.raises(StoreUnreachable):
        async with opened(sentinel.url.replace("/main", "/unknown")):
            pass


async def test_a_user_with_no_more_than_the_listed_rights_will_do(
    start_server, opened, ask, new_key, lives_through, mails_itself
):
    server = start_server()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "door", "on", ">word", *RIGHTS)
        lines = Lines()
        async with opened(f"redis://door:word@127.0.0.1:{server.port}/0", log=lines) as store:
            await lives_through(store, ask, new_key())
            client.script_flush()
            await lives_through(store, ask, new_key())
            client.script_flush()
            await mails_itself(store, ask)
        assert [event for event, _ in lines.events] == ["store_not_persistent"]
        # redis-py tells its name to a Redis that takes it, and does without.
        assert {entry["object"] for entry in client.acl_log()} <= {"client|setinfo"}


def test_the_functions_use_no_command_whose_right_is_not_listed():
    """What a test happens to call is one thing, what a function may need another."""
    used = {match for script in SCRIPTS.values() for match in re.findall(r"call\('(\w+)'(?:, '(\w+)')?", script.text)}
    rights = {f"+{name}|{more}" if more and name in ("XGROUP", "XINFO") else f"+{name}" for name, more in used}
    assert {right.lower() for right in rights} <= {*RIGHTS}
    assert len(rights) > 20


async def test_on_a_cluster_a_user_needs_to_ask_for_the_slots_too(
    nodes, opened, ask, new_key, lives_through, mails_itself
):
    url = f"redis+cluster://door:word@127.0.0.1:{nodes[0].port}"
    for node in nodes:
        with node.client() as client:
            client.execute_command("ACL", "SETUSER", "door", "on", ">word", *CLUSTER_RIGHTS)
    async with opened(url) as one, opened(url) as two:
        for _ in range(8):
            await lives_through(one, ask, new_key())
        await eventually(lambda: one.owner in two.directory.known)
        await mails_itself(one, ask)
        await mails_itself(two, ask)
    for node in nodes:
        with node.client() as client:
            assert {entry["object"] for entry in client.acl_log()} <= {"client|setinfo"}
            client.execute_command("ACL", "SETUSER", "door", "-cluster|slots")
    with pytest.raises(StoreDenied, match=r"cluster\|slots"):
        async with opened(url):
            pass


async def test_each_of_the_rights_is_needed_and_its_want_is_told_at_the_start(start_server, opened):
    server = start_server()
    url = f"redis://door:word@127.0.0.1:{server.port}/1"
    with server.client() as client:
        for right in [right for right in RIGHTS if right.startswith("+")]:
            client.execute_command("ACL", "SETUSER", "door", "reset", "on", ">word", *RIGHTS, right.replace("+", "-"))
            with pytest.raises(StoreDenied, match="(?i)" + right[1:].replace("|", ".")) as error:
                async with opened(url):
                    pytest.fail(f"{right} is not needed")
            assert "docs/operations.md lists the rights" in str(error.value)
        assert client.keys("*") == []
        client.execute_command("ACL", "SETUSER", "door", "reset", "on", ">word", *RIGHTS, "resetkeys", "~other:*")
    with pytest.raises(StoreDenied, match="EVALSHA"):
        async with opened(url):
            pass


def test_the_documents_list_the_rights() -> None:
    text = Path(__file__).parents[2].joinpath("docs/operations.md").read_text()
    assert f"`{' '.join(RIGHTS)}`" in text
    assert f"`{CLUSTER_RIGHTS[-1]}`" in text
    assert CLUSTER_RIGHTS[:-1] == RIGHTS


@pytest.mark.parametrize(
    ("url", "kind", "shown"),
    [
        ("redis://user:secret@h:7000/3", "direct", "redis://h:7000/3"),
        ("rediss://h", "direct", "rediss://h"),
        ("redis://:secret@/0", "direct", "redis:///0"),
        ("redis://:7000", "direct", "redis://:7000"),
        ("unix:///run/redis.sock?db=2", "direct", "unix:///run/redis.sock"),
        ("redis+sentinel://:secret@h1:1,h2/main/2", "sentinel", "redis+sentinel://h1:1,h2/main/2"),
        ("rediss+cluster://user:secret@h1,h2:7000", "cluster", "rediss+cluster://h1,h2:7000"),
    ],
)
def test_a_url_is_shown_without_its_password(url, kind, shown):
    target = parse(url)
    assert (target.kind, target.shown) == (kind, shown)
    assert "secret" not in repr(target)


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "redis+sentinel://h",
        "redis://h:x",
        "rediss+other://h",
        "h:6379",
        "redis://a..b",
        "redis+cluster://h,a..b",
    ],
)
def test_what_is_not_a_store_url_is_refused(url):
    with pytest.raises(StoreUrlError):
        parse(url)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{}/0", "redis+sentinel://127.0.0.1:{}/service"])
def test_a_redis_that_is_away_is_tried_as_often_as_it_takes(url, start_server):
    server = start_server()
    server.kill()
    with closing(open_link(parse(url.format(server.port)))) as link:
        for _ in range(150):
            with pytest.raises(LinkDown, match=r"refused|No master"):
                link.exchange([("PING",)])
        if url.startswith("redis:"):
            server.start()
            assert link.exchange([("PING",)]) == [b"PONG"]
