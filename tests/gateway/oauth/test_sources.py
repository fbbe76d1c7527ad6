"""Where the tokens for a server come from."""

import pytest
import trio

from gateway.oauth.challenges import Challenge
from gateway.oauth.grants import Tokens
from gateway.oauth.metadata import SCOPES_MAX
from gateway.oauth.sources import AskedTokens, RefusedError
from tests.support.harness import RecordingLog


async def test_a_server_that_wants_other_rights_each_time_has_its_fill(autojump_clock):
    """What it has named is asked for again each time, and would only ever grow."""
    asked = []

    async def ask(challenge, before):
        scopes = tuple(dict.fromkeys((*before, *challenge.scopes)))
        asked.append(scopes)
        return Tokens(f"token-{len(asked)}", None, None, scopes), scopes

    source = AskedTokens("a", ask, trio.current_time, RecordingLog())

    async def wants(number):
        await source.refused(Challenge("bearer", {"scope": f"s{number}"}), source.token, scope=True)

    for number in range(SCOPES_MAX):
        await wants(number)
    with pytest.raises(RefusedError) as refused:
        await wants(SCOPES_MAX)
    assert refused.value.reason == "insufficient_scope"
    assert len(asked) == len(asked[-1]) == SCOPES_MAX
