"""What replicas mail each other about pools arrives as it was said, and nothing else does."""

import pytest
from msgspec import Raw
from msgspec.structs import fields

from actors.machines.modern.input_required import InputRequest
from actors.machines.upstream.events import ServerInfo
from actors.machines.upstream.modern_events import Caller
from actors.pools import letters as lt
from actors.pools import messages as pm
from actors.upstreams import messages as um

REF = object()
CLIENT = Caller("ann", Raw(b'{"roots":{}}'), Raw(b'{"name":"c"}'), "info", False, as_is=True)
CALL = um.Call(REF, 7, "tools/call", Raw(b'{"name":"t"}'), True, CLIENT, mends=False, version="2025-11-25")
RESUME = pm.Resume(REF, 7, "life.1", "3", 2, {"1": Raw(b"{}")}, True, "debug")
INFO = ServerInfo("2025-11-25", Raw(b"{}"), Raw(b'{"name":"s"}'), "use it", Raw(b'{"x":1}'))
SUSPENDED = pm.UpstreamSuspended("alpha", 7, "life.1", "3", 2, (InputRequest("1", "roots/list", Raw(b"{}")),))
TO_OWNER = (
    lt.Enter("alpha", ("roots",), "here"),
    lt.Want(),
    lt.call_of(1, CALL),
    lt.resume_of(2, RESUME),
    lt.Cancel(1, "bored"),
    lt.Check(),
    lt.Leave(),
)
TO_HOLDER = (
    lt.Entered(),
    lt.ready_of(um.UpstreamReady(REF, "alpha", INFO, True)),
    lt.Down("gone", b"{}"),
    lt.WrongEra((1, 2)),
    lt.Outcome(1, True, b"{}"),
    lt.suspended_of(SUSPENDED),
    lt.Told(None, "notifications/tools/list_changed", b""),
    lt.Here(),
    lt.Closing(),
    lt.Ended(lt.GONE),
)


def test_it_arrives_as_it_was_said() -> None:
    assert lt.to_owner(lt.encode(TO_OWNER)) == TO_OWNER
    assert lt.to_holder(lt.encode(TO_HOLDER)) == TO_HOLDER
    assert {type(said) for said in TO_OWNER} | {type(said) for said in TO_HOLDER} == set(lt.Said.__args__)


def test_a_call_and_a_retry_are_the_same_on_the_other_side_under_the_numbers_of_the_link() -> None:
    assert lt.call_for(REF, "ann", lt.call_of(7, CALL)) == CALL
    bare = um.Call(REF, 7, "tools/list")
    assert lt.call_for(REF, "ann", lt.call_of(7, bare)) == bare
    assert lt.resume_for(REF, lt.resume_of(7, RESUME)) == RESUME
    assert lt.server_info(lt.ready_of(um.UpstreamReady(REF, "alpha", INFO, True))) == INFO
    assert lt.suspended_for("alpha", 7, lt.suspended_of(SUSPENDED)) == SUSPENDED


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90" * 3, lt.encode(TO_HOLDER), b"\x91" * 2000])
def test_nothing_else_does(data: bytes) -> None:
    with pytest.raises(lt.UnreadableError):
        lt.to_owner(data)


def test_a_caller_has_no_member_that_is_left_behind() -> None:
    left = {"principal", "drives"}  # of the envelope; of sessions alone
    assert {f.name for f in fields(Caller)} - left == {"capabilities", "info", "level", "as_is"}
    assert {f.name for f in fields(um.Call)} == {
        "caller", "call", "method", "params", "progress", "client", "mends", "version", "rights",
    }  # fmt: skip
