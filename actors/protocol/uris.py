"""How a resource's URI is read before a rule is asked about it."""

import re
import unicodedata
from collections.abc import Callable
from ipaddress import AddressValueError, IPv6Address
from typing import Final
from urllib.parse import unquote

from actors.protocol.globs import EXPRESSION, TEMPLATE_MAX, shortened

URI_MAX: Final = 64 * 1024
"""Characters of a URI that rules and pins are asked about: a client can make up any, and all others wait meanwhile."""
_HIDDEN: Final = re.compile(r"%(?:2f|5c|2e|00)", re.IGNORECASE)
"""Slashes, backslashes, dots and NUL that are written as codes: whether they count as what they stand for, each server
decides for itself."""
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_PARTS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)?(//[^/?#]*)?([^?#]*)([?#].*)?", re.DOTALL)
"""Scheme, host, path, and the rest (RFC 3986, appendix B)."""
_WEB: Final = frozenset({"http:", "https:", "ws:", "wss:"})
_LITERAL_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LENIENT: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)(/*)([^/?#]*)")
_ELSEWHERE: Final = re.compile(r"\Afile://[^/?#]+(?=/)")
_PORTS: Final = {"http:": 80, "https:": 443, "ws:": 80, "wss:": 443, "ftp:": 21}
"""The usual ones, of schemes whose hosts are on a network."""
_IGNORED: Final = re.compile(
    "[\u00ad\u034f\u180b-\u180d\u180f\u200b\u2060\u2064\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]"
)
"""Characters that make no other host (UTS 46)."""
_HOST_MAX: Final = 1024
"""Characters of a host that may be the name of one: such a name has at most 253."""
_OPEN_SCHEME: Final = re.compile(r"[^/:#=]*:(?=//)")
"""One that is a pattern itself, before a host; behind a `=` it is that of an address in a query."""
_BEGUN_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=[*?\[][^/]*:)")
"""The beginning of one that goes on as a pattern."""
_ADDRESS: Final = r"(?<=//)\[(?=[0-9a-f.]*:[0-9a-f.]*:[0-9a-f.:]*\])"
"""Where the address of a host begins that is an IPv6 one, and no set of characters."""
_GLOB: Final = re.compile(rf"\*|{_ADDRESS}|\[[^\]]*\]|%(?:2a|3f|5b)", re.IGNORECASE)
_SPECIAL: Final = {"[": "[[]", "%2A": "[*]", "%3F": "[?]", "%5B": "[[]"}
"""Characters that mean something in a pattern, and their codes, as patterns of these characters."""
_MARK: Final = 0xE000
"""What is no text yet stands as a character of private use, from this one on, while the rest is read."""
_MARKS_MAX: Final = 256
_IN_BRACKETS: Final = re.compile(r"(?<=[\[\ue000])[0-9A-Fa-f:.]+(?=\])")
"""The address of an IPv6 host, also where its bracket is the first mark in a pattern."""
_TEMPLATE_MAX: Final = 3 * TEMPLATE_MAX
"""Each character may be written as a code, which has three."""
_BETWEEN: Final = re.compile(r"[/?&=#;:]")
_PLAIN: Final = re.compile(
    r"(?:file://|(?!file:)[a-z][a-z0-9+.-]*://[a-z0-9._-]+)"
    r"(?:/(?!/|\.?(?:[/?#]|\Z))[^/?#%\\\x00-\x1f\x7f]*|/\Z)*"
    r"(?:[?#][^%\\\x00-\x1f\x7f]*)?"
)
"""What is in its one form already, if there is no `..` in it, as most URIs are: scheme and host in small letters, or a
file of this machine, and a path in which nothing stands for anything else."""


def normalized(uri: str) -> str | None:
    """The one form of a URI that rules are matched against (RFC 3986, section 6.2.2): scheme and web host in small
    letters, the address of an IPv6 host as short as can be (RFC 5952), `file:///` for files of this machine, codes of
    plain characters decoded, doubled slashes and `.` left out of the path. None for what could be read as another
    place than it says: `..` between any two delimiters, encoded slashes and dots, backslashes, control characters; and
    for more than URI_MAX characters."""
    return uri if _plain(uri) else _normalized(uri)


def _plain(text: str) -> bool:
    return len(text) <= URI_MAX and ".." not in text and _PLAIN.fullmatch(text) is not None


def readings(uri: str, read: str) -> tuple[str, ...]:
    """What servers may take a URI for, whose one form is `read`: for that, for what many mend it to, and for a file
    `here`."""
    mended = lenient(uri)
    found = (read,) if mended == uri else (read, normalized(mended) or read)
    local = here(found[-1])
    return found if local == found[-1] else (*found, local)


def here(read: str) -> str:
    """A file of another machine as the same of this one, since many servers look at its path alone
    (`urlparse(uri).path`, `new URL(uri).pathname`). Of a URI in its one form, or a template."""
    return _ELSEWHERE.sub("file://", read)


def lenient(uri: str) -> str:
    """What many servers read in place of a URI: without blanks around it and without its fragment, of a file also
    without the query; with the slashes that stand before a host or a file's path, however many of them it has; on a
    network with a path, and without a user, the usual port, and what makes no other host (WHATWG URL, by which
    JavaScript reads `https:/host:443` and `file:etc`)."""
    found = uri.strip().partition("#")[0]
    parts = _LENIENT.match(found)
    if parts is None:
        return found
    (scheme, slashes, host), rest = parts.groups(), found[parts.end() :]
    kind = scheme.lower()
    if kind == "file:":
        return f"{scheme}{slashes or '///'}{host}{rest}".partition("?")[0]
    if kind in _PORTS:
        return f"{scheme}//{_on_network(host, _PORTS[kind])}{rest if rest.startswith('/') else f'/{rest}'}"
    return f"{scheme}//{host.removeprefix('@').removesuffix(':')}{rest}" if slashes == "//" else found


def _on_network(host: str, port: int) -> str:
    """Which host such a part of a URI names, as UTS 46 maps its characters, and the port, if it is not the usual one.
    (A final dot makes no other one in the DNS.)"""
    named = _IGNORED.sub("", unquote(host.rpartition("@")[2], errors="surrogateescape"))
    if len(named) <= _HOST_MAX:
        named = unicodedata.normalize("NFKC", named).replace("\u3002", ".")
    return re.sub(f":(?:0*{port})?$", "", named).rstrip(".")


def _normalized(uri: str, begins: Callable[[str], bool] = lambda path: path.startswith("/")) -> str | None:
    """`begins`: whether so begins the path of a file of this machine, if no host stands before it."""
    parts = _PARTS.fullmatch(uri) if len(uri) <= URI_MAX else None
    if parts is None or _decoded(uri) is None:
        return None
    scheme, host, path, rest = parts.groups(default="")
    scheme, host = scheme.lower(), unquote(host, errors="surrogateescape")  # a capital may be written as a code too
    if scheme in _WEB:  # of other schemes it may be a name like any other
        host = host.lower()
    elif scheme == "file:" and (host.lower() == "//localhost" or (not host and begins(path))):
        host = "//"  # three spellings of one file (RFC 8089, section 2 and appendix B)
    if "]" in host:
        host = _IN_BRACKETS.sub(_shortest, host)
    return scheme + host + unquote(f"{_path(path)}{rest}", errors="surrogateescape")


def _marked(text: str) -> str | None:
    """The same of a pattern: `file:/*` is of any host, too."""
    return _normalized(text, lambda path: path.startswith("/") and not _MARK <= ord(path[1:2] or " ") <= 0xF8FF)


def _decoded(text: str) -> str | None:
    """With what codes stand for; None as above."""
    once = unquote(text, errors="surrogateescape")
    hidden = _HIDDEN.search(text) or _HIDDEN.search(once) or _UNSAFE.search(once) or ".." in _BETWEEN.split(once)
    return None if hidden else once


def pattern(text: str) -> str:
    """A pattern of URIs in the form of what it is matched against: one that is written as its server lists them, with
    codes or a host in capitals, would match nothing, and deny nothing. (Where the scheme is open, the host may be a
    name like any other, and capitals in it are taken as they are; in what begins with neither scheme nor host nothing
    but codes is read.)"""
    return _read(text, _GLOB)


def template(text: str) -> str:
    """The same for what a template's URIs have in common; of one that is too long to be compared anyway nothing is
    read."""
    short = shortened(text)
    if _plain(short):
        return short
    return _read(short, EXPRESSION) if len(short) <= _TEMPLATE_MAX else short


def small_scheme(text: str) -> str:
    """A pattern with its scheme in small letters, where it begins with one: `*/Docs/*` does not."""
    scheme = _LITERAL_SCHEME.match(text) or _OPEN_SCHEME.match(text) or _BEGUN_SCHEME.match(text)
    return text if scheme is None else scheme[0].lower() + text[scheme.end() :]


def _read(text: str, unknown: re.Pattern[str]) -> str:
    if _LITERAL_SCHEME.match(text):
        return _form(text, unknown)
    scheme = _OPEN_SCHEME.match(text)
    if scheme is None:
        return _form(text, unknown, _decoded)
    return scheme[0] + _form(text[scheme.end() :], unknown)


def _form(text: str, unknown: re.Pattern[str], form: Callable[[str], str | None] = _marked) -> str:
    marks: list[str] = []

    def mark(found: re.Match[str]) -> str:
        marks.append(_SPECIAL.get(found[0].upper(), found[0]))
        return chr(_MARK + len(marks) - 1)

    marked = unknown.sub(mark, text)
    plain = unquote(text, errors="surrogateescape")  # one that is written as a code would come out as a mark
    if len(marks) > _MARKS_MAX or any(_MARK <= ord(character) <= 0xF8FF for character in plain):
        return text
    read = form(marked)
    if read is None:
        return text
    return "".join(marks[ord(one) - _MARK] if _MARK <= ord(one) < _MARK + len(marks) else one for one in read)


def _shortest(address: re.Match[str]) -> str:
    try:
        return str(IPv6Address(address[0]))
    except AddressValueError:
        return address[0]


def _path(path: str) -> str:
    """Without segments that name nothing. (A doubled slash at its beginning would be taken for a host.)"""
    parts = path.split("/")
    kept = [part for index, part in enumerate(parts) if part not in ("", ".") or index in (0, len(parts) - 1)]
    return "/".join("" if part == "." else part for part in kept)
