"""How pages find out whose browser it is: what a file says of that, and where it can't be meant so."""

from typing import Final
from urllib.parse import urlsplit

from pydantic.alias_generators import to_camel

from gateway.config.addresses import parse_listen
from gateway.config.models import BrowserSection, File
from gateway.config.problems import Path, Problem
from gateway.config.settings import Browser
from gateway.config.values import plain
from gateway.wire.url import is_loopback

PATH: Final[Path] = ("gateway", "auth", "browser")
_OF: Final = {
    "oidc": {"client_id", "client_secret"},
    "token": set[str](),
    "proxy": {"header", "groups", "from_"},
    "none": set[str](),
}
"""What each mode takes."""


def browser_of(file: File, problems: list[Problem]) -> Browser | None:
    """None where no page has to know who is there. What is wrong is added to `problems`."""
    gateway = file.gateway
    section, listen = gateway.auth.browser, parse_listen(gateway.listen)
    near = listen.loopback or bool(listen.path)
    alone = near and (gateway.public_url is None or is_loopback(urlsplit(gateway.public_url).hostname or ""))
    found = (_assumed if section is None else _said)(file, problems, alone=alone)
    issuers = gateway.auth.issuers  # these need it anyway
    if found is not None and _personal(file) and not (near or gateway.public_url or issuers):
        problems.append(Problem("is missing: users are sent there to connect their accounts", ("gateway", "publicUrl")))
    return found


def _said(file: File, problems: list[Problem], *, alone: bool) -> Browser | None:
    section = file.gateway.auth.browser
    assert section is not None
    problems += (Problem(why, (*PATH, key) if key else PATH) for key, why in _senseless(file, section, alone=alone))
    return Browser(
        section.mode,
        section.client_id or "",
        plain(section.client_secret),
        section.header or "",
        tuple(section.from_),
        section.groups or "",
    )


def _assumed(file: File, problems: list[Problem], *, alone: bool) -> Browser | None:
    """Where nothing is said: by tokens, if there are any, and by nothing where only this machine reaches us."""
    gateway, personal = file.gateway, _personal(file)
    if not personal:
        return None
    if gateway.auth.issuers:
        why = 'is missing: `{"mode": "oidc", "clientId": …}` has users sign in at the first issuer'
        problems.append(Problem(why, PATH))
    if gateway.auth.tokens:
        return Browser("token")
    if not alone and not gateway.auth.issuers:
        why = f'is missing: nothing says who its users are: server "{personal[0]}" has an account of each'
        problems.append(Problem(why, PATH))
    return Browser("none")


def _personal(file: File) -> list[str]:
    """The servers at which each user has an account of his own."""
    servers = {**file.mcp_servers, **file.servers}
    return [name for name, s in servers.items() if s.auth is not None and s.auth.mode in ("user", "key")]


def _senseless(file: File, section: BrowserSection, *, alone: bool) -> list[tuple[str, str]]:
    """What can't be meant so, by its key."""
    auth, mode = file.gateway.auth, section.mode
    found = []
    if mode == "none" and not alone:
        found.append(("mode", "is for a gateway that only this machine can reach"))
    if mode == "oidc" and not section.client_id:
        found.append(("clientId", "is missing"))
    if mode == "oidc" and not auth.issuers:
        found.append(("mode", "needs `auth.issuers`: users sign in at the first of them"))
    if mode in ("oidc", "proxy") and auth.bind_client:
        found.append(("mode", "does not fit `bindClient`: a login does not say which client of a user asks"))
    if mode == "proxy" and not (section.header and section.from_):
        found.append(("", "needs `header` and `from`: a header that anybody may send says nothing"))
    if mode == "token" and not auth.tokens:
        found.append(("mode", "needs `auth.tokens`"))
    said = {key for key in section.model_fields_set if getattr(section, key)}
    foreign = sorted(said - {"mode"} - _OF[mode])
    return [*found, *((to_camel(key.rstrip("_")), f'has no meaning with `"mode": "{mode}"`') for key in foreign)]
