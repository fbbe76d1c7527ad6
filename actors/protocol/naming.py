"""Names and URIs of several backends behind one endpoint.

A name is exposed as `<backend><separator><name>` and a URI as `<u>+<uri>`. Both are decided in a table, from what the
backends list, and are looked up there: nothing is found by splitting an exposed name, so a separator inside a name
does no harm. The same lists give the same names, whatever the order in which they arrived.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

NAME_MAX: Final = 64
"""Characters of an exposed name: what the strictest model APIs take for a tool."""
DIGITS: Final = 8
"""Hex digits of the hash that tells apart what would else have the same name."""

_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_NOT_IN_SCHEME: Final = re.compile(r"[^a-z0-9.-]")
# A template may begin with an expression, or hold one within its scheme.
_HAS_SCHEME: Final = re.compile(r"[A-Za-z{][A-Za-z0-9+.{}*,_-]*:|\{")
_WEB: Final = re.compile(r"https?:", re.IGNORECASE)
_UI: Final = "ui://"


class Owner(NamedTuple):
    """Whose it is, and what it is called there."""

    backend: str
    name: str


class Names(NamedTuple):
    """Exposed names and what they stand for; one table for tools, one for prompts."""

    owners: Mapping[str, Owner] = {}
    exposed: Mapping[Owner, str] = {}

    def expose(self, backend: str, name: str) -> str | None:
        """The exposed name; None for one that is not in the table."""
        return self.exposed.get(Owner(backend, name))

    def resolve(self, exposed: str) -> Owner | None:
        """What an exposed name stands for; None for one that is not in the table."""
        return self.owners.get(exposed)


def build_names(lists: Iterable[tuple[str, Iterable[str]]], separator: str = "__") -> Names:
    """The table for these backends, each with the names that it lists; a name listed twice counts once.

    A name that fits as it is goes before one that must be changed, then an earlier backend before a later one; who
    comes too late for a name gets it with a hash.
    """
    order: dict[str, int] = {}
    wanted: dict[Owner, str] = {}
    for backend, names in lists:
        order.setdefault(backend, len(order))
        for name in names:
            owner = Owner(backend, name)
            wanted[owner] = _plain(owner, separator)

    def precedence(owner: Owner) -> tuple[bool, int, str]:
        return wanted[owner] != _joined(owner, separator), order[owner.backend], owner.name

    owners: dict[str, Owner] = {}
    for owner in sorted(wanted, key=precedence):
        exposed, attempt = wanted[owner], 0
        while exposed in owners:
            exposed, attempt = _hashed(wanted[owner], owner, attempt), attempt + 1
        owners[exposed] = owner
    return Names(owners, {owner: exposed for exposed, owner in owners.items()})


def name_prefix(backend: str, separator: str = "__") -> str:
    """What the exposed names of a backend begin with, unless one had to be shortened."""
    return _NOT_IN_NAME.sub("_", f"{backend}{separator}")


def _joined(owner: Owner, separator: str) -> str:
    return f"{owner.backend}{separator}{owner.name}"


def _plain(owner: Owner, separator: str) -> str:
    clean = _NOT_IN_NAME.sub("_", _joined(owner, separator))
    return clean if len(clean) <= NAME_MAX else _hashed(clean, owner, 0)


def _hashed(clean: str, owner: Owner, attempt: int) -> str:
    return f"{clean[: NAME_MAX - 1 - DIGITS]}_{_digest(*owner, attempt)}"


def _digest(*parts: object) -> str:
    # Each attempt hashes anew: a name made to look like another's hash costs one attempt, not the loop.
    joined = "\0".join(map(str, parts))
    return hashlib.sha256(joined.encode(errors="surrogatepass")).hexdigest()[:DIGITS]


# ---------------------------------------------------------------------------------------------------------------- URIs


class Uris(NamedTuple):
    """The URI table. `slugs` are the backends' scheme parts; web addresses keep theirs and are found in `web`."""

    slugs: Mapping[str, str] = {}
    backends: Mapping[str, str] = {}
    web: Mapping[str, Owner] = {}
    web_templates: Sequence[tuple[str, str]] = ()

    def expose(self, backend: str, uri: str) -> str:
        """A backend's URI, or URI template, as clients see it.

        `https:` says that a client may fetch it itself, so it is kept; `ui://` names an app's page by its scheme, so
        the backend becomes its first segment. Everything else is prefixed, which keeps templates intact.
        """
        slug = self.slugs[backend]
        if _WEB.match(uri):
            return uri
        if uri[: len(_UI)].lower() == _UI:
            return f"{_UI}{slug}/{uri[len(_UI) :]}"
        return f"{slug}+{uri}" if _HAS_SCHEME.match(uri) else f"{slug}:{uri}"

    def resolve(self, uri: str) -> Owner | None:
        """Whose URI it is and what it is called there; None if it is nobody's."""
        if _WEB.match(uri):
            return self._resolve_web(uri)
        if uri[: len(_UI)].lower() == _UI:
            slug, slash, rest = uri[len(_UI) :].partition("/")
            backend = self.backends.get(slug.lower())
            return Owner(backend, _UI + rest) if backend is not None and slash else None
        mark = re.search(r"[+:]", uri)
        if mark is None:
            return None
        backend = self.backends.get(uri[: mark.start()].lower())
        return Owner(backend, uri[mark.end() :]) if backend is not None else None

    def _resolve_web(self, uri: str) -> Owner | None:
        known = self.web.get(_web_key(uri))
        if known is not None:
            return known
        owners = (backend for prefix, backend in self.web_templates if uri.startswith(prefix))
        backend = next(owners, None)
        return Owner(backend, uri) if backend is not None else None


def build_uris(backends: Sequence[str], lists: Iterable[tuple[str, Iterable[str]]] = ()) -> Uris:
    """The table for these backends; `lists` are the URIs and URI templates that each lists, for the web ones."""
    slugs = _slugs(backends)
    web: dict[str, Owner] = {}
    templates: dict[str, str] = {}
    for backend, uris in lists:
        for uri in uris:
            if _WEB.match(uri):
                web.setdefault(_web_key(uri), Owner(backend, uri))
                if "{" in uri:
                    templates.setdefault(uri[: uri.index("{")], backend)
    longest_first = sorted(templates.items(), key=lambda entry: -len(entry[0]))
    return Uris(slugs, {slug: backend for backend, slug in slugs.items()}, web, longest_first)


def _slugs(backends: Sequence[str]) -> dict[str, str]:
    """Each backend's name as the beginning of a scheme (RFC 3986, 3.1), without `+`, which ends it."""
    plain = {backend: _scheme_part(backend) for backend in backends}
    taken: dict[str, str] = {}
    for backend in sorted(plain, key=lambda backend: plain[backend] != backend):
        slug, attempt = plain[backend], 0
        while slug in taken or slug in _RESERVED:
            slug, attempt = f"{plain[backend]}-{_digest(backend, attempt)}", attempt + 1
        taken[slug] = backend
    by_backend = {backend: slug for slug, backend in taken.items()}
    return {backend: by_backend[backend] for backend in plain}


_RESERVED: Final = frozenset({"http", "https", "ui", "file", "ftp", "ws", "wss", "data", "javascript"})
"""Schemes with a meaning of their own: `<u>:` before a reference without a scheme must not become one of them."""


def _scheme_part(name: str) -> str:
    part = _NOT_IN_SCHEME.sub("-", name.lower())
    return part if part[:1].isalpha() else f"s-{part}"


def _web_key(uri: str) -> str:
    """Web addresses that URL types take for the same: scheme and host in small letters, an empty path as `/`."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    return urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path or "/", parts.query, parts.fragment))
