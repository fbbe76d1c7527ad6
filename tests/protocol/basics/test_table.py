"""The table of backends holds credentials: its values may be logged."""

from actors.protocol.table import BackendSpec, HttpTarget, StdioTarget


def test_no_secret_is_in_the_words_for_a_backend():
    stdio = BackendSpec("a", StdioTarget("run", ("--fast",), env=(("TOKEN", "hush"),)))
    http = BackendSpec("b", HttpTarget("https://b.test/mcp", headers=(("Authorization", "Bearer hush"),)))
    assert "hush" not in repr(stdio) + repr(http)
    assert "--fast" in repr(stdio)
