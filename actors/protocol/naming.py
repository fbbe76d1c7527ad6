"""Names and URIs of several backends behind one endpoint.

A name is exposed as `<backend><separator><name>` and a URI as `<u>+<uri>`. Which backend a name belongs to follows from
the configuration alone: no two backends can have a name in common, whatever they list and whoever was asked first.
Names are looked up in a table made of what the backends list: none is found by splitting an exposed one, so a separator
inside a tool's name does no harm.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

NAME_MAX: Final = 64
"""Characters of an exposed name: what the strictest model APIs take for a tool."""
DIGITS: Final = 8
"""Hex digits of the hash that tells apart what would else have the same name."""
_CUT: Final = NAME_MAX - 1 - DIGITS
"""Characters that a name keeps before such a hash."""
_STEM: Final = 24
"""Characters that a backend's name keeps before such a hash, so that there is room for those of its tools."""

_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_NOT_IN_SCHEME: Final = re.compile(r"[^a-z0-9.-]")
# A template may begin with an expression, or hold one within its scheme.
_HAS_SCHEME: Final = re.compile(r"[A-Za-z{][A-Za-z0-9+.{}*,_-]*:|\{")
_WEB: Final = re.compile(r"https?:", re.IGNORECASE)
_UI: Final = "ui://"


class Owner(NamedTuple):
    """Which backend something is of, and what it is called there."""

    backend: str
    name: str


class Prefix(NamedTuple):
    """What the exposed names of one backend begin with: `plain`, or `hashed` where a plain name would fit the prefix of
    one of its `rivals` too."""

    plain: str
    hashed: str
    rivals: tuple[str, ...] = ()

    def contests(self, exposed: str) -> bool:
        """Whether a name that begins with `plain` could be another backend's as well."""
        return len(self.plain) > _CUT or exposed.startswith(self.rivals)

    @property
    def usual(self) -> str:
        """What most of its names begin with."""
        return self.hashed if self.contests(self.plain) else self.plain


class Prefixes(NamedTuple):
    """The prefixes of all configured backends."""

    by_backend: Mapping[str, Prefix] = {}

    def owner(self, exposed: str) -> str | None:
        """The one backend that can have a name like this."""
        for backend, prefix in self.by_backend.items():
            if exposed.startswith(prefix.hashed):
                return backend
            if exposed.startswith(prefix.plain) and not prefix.contests(exposed):
                return backend
        return None

    def claimed(self, name: str) -> bool:
        """Whether it looks like an exposed name, even one that no backend can have."""
        return any(name.startswith((prefix.plain, prefix.hashed)) for prefix in self.by_backend.values())


@lru_cache(maxsize=64)
def prefixes(backends: tuple[str, ...], separator: str = "__") -> Prefixes:
    """The prefixes of these backends: the same for the same names, whatever their order."""
    plain = {backend: _clean(f"{backend}{separator}") for backend in backends}
    taken = [prefix for prefix in plain.values() if len(prefix) <= _CUT]
    hashed: dict[str, str] = {}
    for backend in sorted(plain):
        hashed[backend] = _hashed_prefix(backend, separator, taken)
        taken.append(hashed[backend])
    found: dict[str, Prefix] = {}
    for backend, own in plain.items():
        others = {prefix for other, prefix in plain.items() if other != backend and len(prefix) <= _CUT}
        rivals = tuple(sorted(prefix for prefix in others if _meet(prefix, own)))
        found[backend] = Prefix(own, hashed[backend], rivals)
    return Prefixes(found)


def _hashed_prefix(backend: str, separator: str, taken: Sequence[str]) -> str:
    """A prefix that begins like no other one, and that no other one begins like."""
    clean = _clean(backend)
    stem = (clean.partition(separator)[0] if separator else clean).rstrip("_-")[:_STEM]
    joiner = "-" if separator.startswith("_") else "_"
    attempt = 0
    while True:
        kept = stem[: max(0, len(stem) - attempt)]  # in the end nothing is left that another one could begin like
        prefix = f"{kept}{joiner if kept else ''}{_digest(backend, attempt)}{separator}"
        if not any(_meet(prefix, other) for other in taken):
            return prefix
        attempt += 1


def _meet(one: str, other: str) -> bool:
    """Whether a name can begin with both."""
    return one.startswith(other) or other.startswith(one)


class Names(NamedTuple):
    """Exposed names and what they stand for; one table for tools, one for prompts. `bare`: the exposed names of
    whatever the backends themselves call by one name."""

    owners: Mapping[str, Owner] = {}
    exposed: Mapping[Owner, str] = {}
    bare: Mapping[str, Sequence[str]] = {}
    prefixes: Prefixes = Prefixes()

    def expose(self, backend: str, name: str) -> str | None:
        """The exposed name; None for one that is not in the table."""
        return self.exposed.get(Owner(backend, name))

    def resolve(self, exposed: str) -> Owner | None:
        """What an exposed name stands for; None for one that is not in the table."""
        return self.owners.get(exposed)

    def namesakes(self, name: str) -> Sequence[str]:
        """The exposed names of what the backends themselves call so. What looks like an exposed name is nobody's bare
        one: else it could be another backend's once the one that it belongs to lists it."""
        found = self.bare.get(name, ())
        return () if found and self.prefixes.claimed(name) else found


def build_names(
    lists: Iterable[tuple[str, Iterable[str]]], separator: str = "__", backends: Iterable[str] = ()
) -> Names:
    """The table for these lists, each of one backend and the names that it has; a name listed twice counts once.

    `backends` are all that are configured, whether they are among the lists or not. Of the names of one backend those
    that fit as they are go before those that must be changed; what comes too late for a name gets it with a hash.
    """
    wanted: dict[str, set[str]] = {}
    for backend, names in lists:
        wanted.setdefault(backend, set()).update(names)
    known = prefixes(tuple(dict.fromkeys((*backends, *wanted))), separator)
    owners: dict[str, Owner] = {}
    bare: dict[str, list[str]] = {}
    for backend, names in wanted.items():
        prefix = known.by_backend[backend]
        for name in sorted(names, key=lambda name: (_clean(name) != name, name)):
            owner, attempt = Owner(backend, name), -1
            exposed = _exposed(prefix, owner, attempt)
            while exposed in owners:
                attempt += 1
                exposed = _exposed(prefix, owner, attempt)
            owners[exposed] = owner
            bare.setdefault(name, []).append(exposed)
    return Names(owners, {owner: exposed for exposed, owner in owners.items()}, bare, known)


def name_prefix(backend: str, separator: str = "__", backends: Iterable[str] = ()) -> str:
    """What the exposed names of a backend begin with, unless one had to be changed; `backends` as above."""
    return prefixes(tuple(dict.fromkeys((*backends, backend))), separator).by_backend[backend].usual


def _exposed(prefix: Prefix, owner: Owner, attempt: int) -> str:
    plain = _fitted(prefix.plain, owner, attempt)
    return _fitted(prefix.hashed, owner, attempt) if prefix.contests(plain) else plain


def _fitted(prefix: str, owner: Owner, attempt: int) -> str:
    """With a hash from attempt 0 on, or where it is too long."""
    whole = prefix + _clean(owner.name)
    if attempt < 0 and len(whole) <= NAME_MAX:
        return whole
    # Each attempt hashes anew: a name made to look like another's hash costs one attempt, not the loop.
    return f"{whole[:_CUT]}_{_digest(*owner, max(0, attempt))}"


def _clean(name: str) -> str:
    return _NOT_IN_NAME.sub("_", name)


def _digest(*parts: object) -> str:
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
        the backend becomes its first segment. Everything else is prefixed, which keeps templates intact. What a backend
        still says that has just left the configuration can't be asked for any more, and stays as it is.
        """
        slug = self.slugs.get(backend)
        if slug is None or _WEB.match(uri):
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


def is_web(uri: str) -> bool:
    """Whether it is a web address, which several backends may list."""
    return _WEB.match(uri) is not None


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
