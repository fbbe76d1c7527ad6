"""The environment of a child process.

A backend gets what its configuration names and a short list of harmless variables, as the official SDKs do: the
gateway's own environment holds secrets of the gateway and of other backends. The list is the SDKs' (HOME, LOGNAME,
PATH, SHELL, TERM, USER) with locale, time zone and the directory for temporary files. Proxy settings are left out,
since they may hold a password; a backend that needs them names them in its `env`.
"""

from collections.abc import Iterable, Mapping

INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ")


def child_environment(configured: Iterable[tuple[str, str]], own: Mapping[str, str]) -> dict[str, str]:
    """The inherited variables of `own`, overlaid by the configured ones."""
    inherited = {name: own[name] for name in INHERITED if name in own and not own[name].startswith("()")}
    return inherited | dict(configured)
