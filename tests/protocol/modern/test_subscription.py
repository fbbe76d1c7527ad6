"""A client's `subscriptions/listen`: acknowledgement, tags, coalescing, the end."""

import json
from typing import Any

import pytest
from msgspec import Raw

from actors.machines.modern import subscription as ev
from actors.machines.modern.subscription import GATHERED_MAX, TRANSITIONS, Phase, Subscription, step
from actors.protocol import errors
from actors.protocol.errors import Refusal
from actors.protocol.filter import Filter, read
from actors.protocol.methods import LIST_CHANGED, UPDATED

TAG = "io.modelcontextprotocol/subscriptionId"
TOOLS, PROMPTS, RESOURCES = LIST_CHANGED.values()
EVERYTHING = Filter(frozenset({TOOLS, PROMPTS, RESOURCES}), ("a:1", "a:2"))


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


class Driver:
    """A subscription, and what it wanted."""

    def __init__(self, filter: Filter = EVERYTHING, id: int | str = 7) -> None:
        self.subscription = Subscription(id, filter)

    def on(self, event: Any) -> list[Any]:
        self.subscription, effects = step(self.subscription, event)
        return list(effects)

    def open(self) -> "Driver":
        self.on(ev.Opened())
        return self

    def active(self, honoured: Filter | None = None) -> "Driver":
        self.open().on(ev.Honoured(honoured if honoured is not None else self.subscription.filter))
        return self

    def change(self, method: str, **params: Any) -> list[Any]:
        return self.on(ev.Changed(method, raw(params)))

    def flush(self) -> list[Any]:
        return frames(self.on(ev.FlushDue()))


def frames(effects: list[Any]) -> list[Any]:
    return [json.loads(e.frame) for e in effects if isinstance(e, ev.Write | ev.Close)]


def kinds(effects: list[Any]) -> list[type]:
    return [type(effect) for effect in effects]


def test_a_subscription_begins_by_watching() -> None:
    assert Driver().on(ev.Opened()) == [ev.Watch(EVERYTHING)]


def test_the_first_message_is_the_acknowledgement_of_what_is_honoured() -> None:
    driver = Driver().open()
    effects = driver.on(ev.Honoured(Filter(frozenset({TOOLS}), ("a:2", "a:3"))))
    assert kinds(effects) == [ev.OpenStream, ev.Write]
    assert frames(effects)[0]["method"] == "notifications/subscriptions/acknowledged"
    assert frames(effects)[0]["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["a:2"]}


def test_more_than_was_asked_for_is_never_acknowledged() -> None:
    effects = Driver(Filter()).open().on(ev.Honoured(EVERYTHING))
    assert frames(effects)[0]["params"]["notifications"] == {}


@pytest.mark.parametrize("id", [1, "1", 0, "a b"])
def test_every_message_bears_the_id_of_the_listen_in_value_and_type(id: int | str) -> None:
    driver = Driver(id=id).open()
    said = frames(driver.on(ev.Honoured(EVERYTHING)))
    driver.change(TOOLS, _meta={TAG: "upstream", "x": 1})
    driver.change(UPDATED, uri="a:1")
    said += driver.flush()
    assert len(said) == 3
    for message in said:
        tag = message["params"]["_meta"][TAG]
        assert (tag, type(tag)) == (id, type(id))
    assert said[1]["params"]["_meta"]["x"] == 1
    closing = frames(driver.on(ev.Ended()))[-1]
    assert closing["id"] == id
    assert closing["result"] == {"resultType": "complete", "_meta": {TAG: id}}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (PROMPTS, {}),
        (UPDATED, {"uri": "a:2"}),
        (UPDATED, {}),
        ("notifications/progress", {"progress": 1}),
        ("notifications/message", {"level": "error"}),
    ],
)
def test_what_was_not_asked_for_is_never_said(method: str, params: Any) -> None:
    driver = Driver(Filter(frozenset({TOOLS}), ("a:1",))).active()
    assert kinds(driver.change(method, **params)) == [ev.Count]
    assert driver.flush() == []


def test_what_was_asked_for_and_not_honoured_is_never_said() -> None:
    driver = Driver().active(Filter(frozenset({TOOLS})))
    assert kinds(driver.change(PROMPTS)) == [ev.Count]


def test_an_update_of_a_part_is_said() -> None:
    driver = Driver().active()
    driver.change(UPDATED, uri="a:1/part")
    assert driver.flush()[0]["params"]["uri"] == "a:1/part"


def test_changes_that_come_together_become_one() -> None:
    driver = Driver().active()
    assert kinds(driver.change(TOOLS)) == [ev.StartFlushClock]
    for _ in range(5):
        assert driver.change(TOOLS) == []
        assert driver.change(UPDATED, uri="a:1") == []
    driver.change(UPDATED, uri="a:2")
    said = driver.flush()
    assert [(m["method"], m["params"].get("uri")) for m in said] == [(TOOLS, None), (UPDATED, "a:1"), (UPDATED, "a:2")]
    assert driver.flush() == []
    assert kinds(driver.change(TOOLS)) == [ev.StartFlushClock]


def test_what_changes_before_the_acknowledgement_is_said_after_it() -> None:
    driver = Driver().open()
    assert driver.change(TOOLS) == []
    driver.change(PROMPTS)
    said = frames(driver.on(ev.Honoured(Filter(frozenset({TOOLS})))))
    assert [message["method"] for message in said] == ["notifications/subscriptions/acknowledged", TOOLS]


def test_a_subscription_that_can_not_be_served_gets_an_error_with_its_status_and_no_acknowledgement() -> None:
    effects = Driver().open().on(ev.Refused(errors.method_not_found("subscriptions/listen")))
    assert kinds(effects) == [ev.Unwatch, ev.Answer]
    assert effects[1].status == 404
    assert json.loads(effects[1].body)["error"]["code"] == -32601


def test_the_server_ends_it_with_what_has_gathered_and_the_result() -> None:
    driver = Driver().active()
    driver.change(TOOLS)
    effects = driver.on(ev.Ended())
    assert kinds(effects) == [ev.Unwatch, ev.Write, ev.Close]
    assert frames(effects)[0]["method"] == TOOLS
    assert "result" in frames(effects)[1]


def test_one_that_has_no_stream_yet_is_ended_by_an_error() -> None:
    assert kinds(Driver().open().on(ev.Ended())) == [ev.Unwatch, ev.Answer]


def test_a_client_that_does_not_read_is_cut_with_the_result_as_the_last_word() -> None:
    effects = Driver().active().on(ev.Overflowed())
    assert kinds(effects) == [ev.Unwatch, ev.Close]
    assert effects[1].cut


def test_more_changes_than_are_kept_end_it() -> None:
    driver = Driver(Filter(uris=("a:",))).active()
    for number in range(GATHERED_MAX):
        driver.change(UPDATED, uri=f"a:{number}")
    assert driver.change(UPDATED, uri="a:0") == []
    effects = driver.change(UPDATED, uri="a:one-more")
    assert effects[-1].cut
    assert driver.subscription.phase is Phase.DONE


def test_a_client_that_disconnects_is_unsubscribed() -> None:
    assert Driver().active().on(ev.Disconnected()) == [ev.Unwatch()]


def test_every_event_in_every_phase_is_served_by_the_table_or_changes_nothing() -> None:
    samples = [
        ev.Opened(),
        ev.Refused(errors.internal()),
        ev.Honoured(EVERYTHING),
        ev.Changed(TOOLS, raw({})),
        ev.Notified("acme/beat", raw({})),
        ev.FlushDue(),
        ev.Ended(),
        ev.Overflowed(),
        ev.Disconnected(),
    ]
    assert {type(event) for event in samples} == set(ev.CAUSES)
    for phase in Phase:
        for event in samples:
            before = Subscription(1, EVERYTHING, phase)
            after, effects = step(before, event)
            to = TRANSITIONS.get((phase, ev.CAUSES[type(event)]))
            if to is None:
                assert after is before
                assert kinds(effects) == [ev.Count]
            else:
                assert after.phase is to


# Filters


def test_a_filter_is_read_and_written_as_it_was() -> None:
    wire = {"toolsListChanged": True, "resourcesListChanged": True, "resourceSubscriptions": ["a:1", "a:2"]}
    filter = read(raw({"notifications": wire}))
    assert filter == Filter(frozenset({TOOLS, RESOURCES}), ("a:1", "a:2"))
    assert json.loads(bytes(filter.raw)) == wire


def test_false_null_and_unknown_kinds_ask_for_nothing() -> None:
    wire = {"toolsListChanged": False, "promptsListChanged": None, "taskIds": None, "future": True}
    assert read(raw({"notifications": wire})).empty


def test_a_resource_named_twice_counts_once() -> None:
    assert read(raw({"notifications": {"resourceSubscriptions": ["a:1", "a:1"]}})).uris == ("a:1",)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"notifications": None},
        {"notifications": []},
        {"notifications": {"toolsListChanged": 1}},
        {"notifications": {"resourceSubscriptions": "a:1"}},
        {"notifications": {"resourceSubscriptions": [1]}},
        {"notifications": {"resourceSubscriptions": ["a:" + "x" * 9000]}},
        {"notifications": {"resourceSubscriptions": [f"a:{n}" for n in range(2000)]}},
    ],
)
def test_a_filter_that_is_none_is_refused(params: Any) -> None:
    with pytest.raises(Refusal) as refusal:
        read(raw(params))
    assert refusal.value.error.code == -32602
