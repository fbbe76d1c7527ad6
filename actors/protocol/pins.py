"""Pins: what somebody has looked at of a server, and accepted. What the server defines otherwise is warned of, or held
back until that is accepted too.

A definition is pinned by what a model or a person reads of it (`MEMBERS`), in one canonical form (RFC 8785), whatever
the order of its members. `judge` decides for a list, `held` for a name: both by the same comparison, so that what is
shown can be called, and nothing else. What a server *does* is not pinned, nor what its results say.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Raw

from actors.protocol import uris
from actors.protocol.aggregate import item_name
from actors.protocol.definitions import Definitions
from actors.protocol.globs import template
from actors.protocol.lookalikes import hidden_within, skeleton
from actors.protocol.policy import Kind
from actors.protocol.spelling import Members
from actors.protocol.subjects import LISTED
from actors.protocol.uris import normalized, readings

Mode = Literal["off", "warn", "block"]
Change = Literal["new", "changed", "widened", "removed"]
"""`widened`: changed so that it takes more than before, or by its own word does more."""

NAMED_BY: Final[Mapping[Kind, str]] = {"tool": "name", "prompt": "name", "resource": "uri", "template": "uriTemplate"}
_SHOWN: Final = ("name", "title", "description")
MEMBERS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "tool": (*_SHOWN, "inputSchema", "outputSchema", "annotations", "icons"),
    "prompt": (*_SHOWN, "arguments", "icons"),
    "resource": (*_SHOWN, "uri", "mimeType", "annotations", "icons"),
    "template": (*_SHOWN, "uriTemplate", "mimeType", "annotations", "icons"),
}
"""What of a definition is pinned. (A resource's `size` and times change as it does; `_meta` is for programs.)"""
_SPELLED: Final = {kind: Members(members) for kind, members in MEMBERS.items()}
_VOLATILE: Final = {"resource": ("lastModified",), "template": ("lastModified",)}
"""What of annotations is not."""
TOLD_MAX: Final = 65_536
"""Differences of one server that are remembered as told."""
LISTS_MAX: Final = 8
"""Lists of one server that are remembered with what was found: the same one comes again for each client that asks."""


class Pin(NamedTuple):
    """One definition: what is pinned of it, in its canonical form, and a digest of that."""

    digest: str
    form: str


class Difference(NamedTuple):
    """What is not as it was accepted. `before` and `after` are canonical forms; empty: there is none. `unseen`: what of
    the new one its reader would not see, or take for something else."""

    kind: str
    name: str
    change: Change
    before: str
    after: str
    unseen: tuple[str, ...] = ()


class Judged(NamedTuple):
    """What was found in a list: the items that are as they were accepted, the names that are not, and what is to be
    told."""

    kept: tuple[Raw, ...]
    held: frozenset[str]
    told: tuple[Difference, ...]


class Pins:
    """What was accepted of one server. `known`: anything of it is pinned. `lists`: that, as it was accepted, by
    method."""

    __slots__ = (
        "_lists",
        "_pinned",
        "_skeletons",
        "_templates",
        "_told",
        "digest",
        "instructions",
        "known",
        "lists",
        "mode",
    )

    def __init__(self, mode: Mode, definitions: Definitions | None) -> None:
        self.mode = mode
        self.known = definitions is not None
        self.lists: Mapping[str, Sequence[Raw]] = definitions.lists if definitions is not None else {}
        self._pinned: dict[Kind, dict[str, Pin]] = {kind: {} for kind in MEMBERS}
        for method, items in definitions.lists.items() if definitions is not None else ():
            for item in items:
                kind = LISTED[method]
                self._pinned[kind][item_name(item, NAMED_BY[kind]) or ""] = pin(kind, item)
        said = definitions.introduction if definitions is not None else None
        self.instructions = said.instructions if said is not None else None
        templates = (template(uris.template(name)) for name in self._pinned["template"])
        self._templates = tuple(one for one in templates if one is not None)
        self._skeletons = {skeleton(name): name for kind in ("tool", "prompt") for name in self._pinned[kind]}
        self._told: dict[tuple[str, ...], None] = {}
        self._lists: list[tuple[tuple[Kind, bool], tuple[Raw, ...], Judged]] = []
        """The latest one last."""
        forms = [[kind, sorted(named.items())] for kind, named in self._pinned.items()]
        said_of = repr((mode, self.known, self.instructions, forms))
        self.digest = hashlib.sha256(said_of.encode(errors="surrogatepass")).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pins) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Pins {self.mode} {self.digest}>"

    @property
    def blocks(self) -> bool:
        """Whether what was not accepted is held back."""
        return self.mode == "block"

    def judge(self, kind: Kind, items: Iterable[Raw], *, whole: bool = False) -> Judged:
        """What of a list was accepted; `whole`: what is not in it, the server does not have any more."""
        items, key = tuple(items), (kind, whole)
        for place, (known, listed, judged) in enumerate(self._lists):
            if known == key and listed == items:
                self._lists.append(self._lists.pop(place))
                return judged
        judged = self._judge(kind, items, whole=whole)
        again = judged._replace(told=())  # which is told once
        self._lists = [*self._lists[1 - LISTS_MAX :], (key, items, again)]
        return judged

    def _judge(self, kind: Kind, items: Iterable[Raw], *, whole: bool) -> Judged:
        kept, named, held = list[tuple[str, Raw]](), dict[str, str](), dict[str, None]()
        told: list[Difference] = []
        for item in items:
            name = item_name(item, NAMED_BY[kind]) or ""
            found = pin(kind, item)
            change = self._change(kind, name, found)
            if name in named and named[name] != found.digest:
                change = change or "changed"  # of two with one name nobody knows which one runs
            named.setdefault(name, found.digest)
            unseen = self._unseen(kind, name, found, change)
            if change is not None:
                held[name] = None
            if unseen or (change is not None and (self.known or self.blocks)):
                before = self._pinned[kind].get(name)
                told.append(Difference(kind, name, change or "new", before.form if before else "", found.form, unseen))
            kept.append((name, item))
        if whole:
            gone = [(name, one) for name, one in self._pinned[kind].items() if name not in named]
            told += [Difference(kind, name, "removed", one.form, "") for name, one in gone]
        return Judged(tuple(item for name, item in kept if name not in held), frozenset(held), tuple(told))

    def _change(self, kind: Kind, name: str, found: Pin) -> Change | None:
        pinned = self._pinned[kind].get(name)
        if pinned is None:
            return None if kind == "resource" and self._expands(name) else "new"
        if pinned.digest == found.digest:
            return None
        return "widened" if widened(pinned.form, found.form) else "changed"

    def _unseen(self, kind: Kind, name: str, found: Pin, change: Change | None) -> tuple[str, ...]:
        """What was accepted as it is was seen then."""
        if change is None:
            return ()
        notes: list[str] = []
        if not found.form or _SEEN.fullmatch(found.form) is None:
            try:
                notes = hidden_within(json.loads(found.form))
            except (ValueError, RecursionError):
                notes = ["it can't be read"]
        twin = self._skeletons.get(skeleton(name)) if kind in ("tool", "prompt") else None
        if twin is not None and twin != name:
            notes.append(f"its name looks like {twin!r}")
        return tuple(notes)

    def _expands(self, uri: str) -> bool:
        read = normalized(uri)
        return read is not None and any(one.matches(read) for one in self._templates)

    def allows(self, kind: Kind, name: str, held: Iterable[str] = ()) -> bool:
        """Whether what has this name was accepted, or what it is made from, and is not among those that are defined
        otherwise by now. A URI counts in every spelling that a server may take for it."""
        named = self._pinned[kind]
        if kind != "resource" or name in named:
            return name in named and name not in held
        read = normalized(name)
        if read is None or not {*readings(name, read)}.isdisjoint(map(normalized, held)):
            return False
        return self._expands(name) or any(normalized(uri) == read for uri in named)

    def misses(self, kind: Kind, name: str) -> bool:
        """Whether nothing is known of this name though its server was looked at: then it is not these pins that keep
        it back."""
        kinds = {kind, "template"} if kind == "resource" else {kind}
        looked = [(known, judged) for (known, _), _, judged in self._lists if known in kinds]
        if kind not in {known for known, _ in looked} or name in self._pinned[kind]:
            return False
        read = normalized(name) if kind == "resource" else name
        for known, judged in looked:
            for one in judged.held:
                if one == name or (kind == "resource" and _stands_for(known, one, read)):
                    return False
        return True

    def introduced(self, instructions: str | None) -> Difference | None:
        """Whether a server says another thing of how to use it than was accepted."""
        if instructions == self.instructions or not (self.known or self.blocks) or instructions is None:
            return None
        change: Change = "new" if self.instructions is None else "changed"
        return Difference(
            "instructions", "", change, self.instructions or "", instructions, tuple(hidden_within(instructions))
        )

    def tells(self, difference: Difference) -> bool:
        """Whether this has not been told yet."""
        key = (*difference[:3], digest_of(difference.after))
        if key in self._told:
            return False
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told[key] = None
        return True


def _stands_for(kind: Kind, listed: str, uri: str | None) -> bool:
    """Whether a resource or a template may be what a URI names; what can't be read, or compared, may be anything."""
    if kind == "template":
        names = template(uris.template(listed))
        return uri is None or names is None or names.matches(uri)
    return uri is None or normalized(listed) == uri


def pin(kind: Kind, item: Raw) -> Pin:
    """What is pinned of an item of a list. Of one that can't be read in one way only, nothing is as it was."""
    data = bytes(item)
    try:
        value, plain = _read(data)
        part = _pinned_part(kind, value)
        form = (_quickly(part) if plain else None) or canonical(part)
    except (ValueError, RecursionError):
        return Pin(f"unreadable {digest_of(data.hex())}", "")
    return Pin(digest_of(form), form)


_SEEN: Final = re.compile(r"(?:[ -\[\]-~]|\\[\"\\nrt])*")
"""A canonical form in which nothing is that its reader does not see, and which need not be looked through."""


class _FloatError(ValueError):
    """A number that has several spellings."""


def _fraction(text: str) -> float:
    raise _FloatError


_decode_plain: Final = msgspec.json.Decoder(float_hook=_fraction).decode
_encode_plain: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


def _read(data: bytes) -> tuple[Any, bool]:
    """The value of an item, and whether it is plain: it comes out again as it went in, so that no member can stand
    there twice, and no number in it has a fraction. This is much quicker to see. ValueError: two readers need not find
    the same in it."""
    try:
        value = _decode_plain(data)
        if _encode_plain(value) == data:
            return value, True
    except (msgspec.MsgspecError, ValueError, OverflowError):
        pass
    return json.loads(data, object_pairs_hook=_once), False


def _quickly(plain: Any) -> str | None:
    """As `canonical`; None: of this it can't be told."""
    text = _encode_sorted(plain).decode()
    return text if _SAME_ORDER.fullmatch(text) is not None else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two members with one name each reader takes another one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a member stands there twice")
    return found


_BOOLEANS: Final[Mapping[bool, Any]] = {True: {}, False: {"not": {}}}


def _pinned_part(kind: Kind, item: Any) -> Any:
    if not isinstance(item, dict):
        raise ValueError("a definition is an object")  # noqa: TRY004 - of JSON
    part = {member: item[member] for member in MEMBERS[kind] if item.get(member) is not None}
    # What a reader could take for one of these, who makes no difference between capitals and small letters.
    part |= {member: value for member, value in item.items() if _SPELLED[kind].other(member) is not None}
    for name in ("inputSchema", "outputSchema"):  # the same in the words of either era (`translate`)
        if isinstance(part.get(name), dict) and isinstance(part[name].get("properties"), dict):
            properties = {
                k: _BOOLEANS.get(v, v) if isinstance(v, bool) else v for k, v in part[name]["properties"].items()
            }
            part[name] = {**part[name], "properties": properties}
    if "outputSchema" in part and not (
        isinstance(part["outputSchema"], dict) and part["outputSchema"].get("type") == "object"
    ):
        del part["outputSchema"]
    if isinstance(part.get("annotations"), dict) and kind in _VOLATILE:
        part["annotations"] = {k: v for k, v in part["annotations"].items() if k not in _VOLATILE[kind]}
    return part


def digest_of(text: str) -> str:
    """SHA-256, as people compare it."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def canonical(value: Any) -> str:
    """JSON in one form (RFC 8785): members by their names' UTF-16, numbers as short as they go, no white space."""
    return json.dumps(_sorted(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


_SAME_ORDER: Final = re.compile("[\x00-\ud7ff]*")
"""Text of which UTF-8 and UTF-16 have the same order."""


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _sorted(value[k]) for k in sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))}
    if isinstance(value, list):
        return [_sorted(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value


# What is wider than it was ----------------------------------------------------------------------------------------

_HINTS: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
"""Of a tool's annotations: what counts where one is left out, which is the worse (2025-11-25, ToolAnnotations)."""


def widened(before: str, after: str) -> bool:
    """Whether a definition takes more than before, or by its own word does more. A guess by the plain keywords of a
    schema: what is not found wider is changed all the same."""
    try:
        return _wider_definition(json.loads(before), json.loads(after))
    except (ValueError, RecursionError):
        return False


def _wider_definition(old: dict[str, Any], new: dict[str, Any]) -> bool:
    if _worse(old.get("annotations"), new.get("annotations")) and "inputSchema" in old:
        return True
    if isinstance(new.get("arguments"), list):
        return bool(_names_of(new) - _names_of(old))
    return _wider(old.get("inputSchema", True), new.get("inputSchema", True))


def _worse(old: Any, new: Any) -> bool:
    old, new = (hints if isinstance(hints, dict) else {} for hints in (old, new))
    return any(old.get(hint, worse) is not worse and new.get(hint, worse) is worse for hint, worse in _HINTS.items())


def _names_of(prompt: dict[str, Any]) -> set[str]:
    arguments = prompt.get("arguments")
    return {str(a.get("name")) for a in arguments if isinstance(a, dict)} if isinstance(arguments, list) else set()


def _wider(old: Any, new: Any) -> bool:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return (new is True and old is not True) or (old is False and new is not False)
    if _values(old, "required") - _values(new, "required"):
        return True
    for keyword in ("enum", "type"):
        if keyword in old and (keyword not in new or _values(new, keyword) - _values(old, keyword)):
            return True
    if old.get("additionalProperties") is False and new.get("additionalProperties") is not False:
        return True
    olds, news = (schema.get("properties") for schema in (old, new))
    olds, news = (found if isinstance(found, dict) else {} for found in (olds, news))
    if news.keys() - olds.keys():
        return True
    inner = [(olds[name], news[name]) for name in news] + [(old.get("items", True), new.get("items", True))]
    return any(_wider(*both) for both in inner)


def _values(schema: dict[str, Any], keyword: str) -> set[str]:
    found = schema.get(keyword)
    return {canonical(value) for value in (found if isinstance(found, list) else [] if found is None else [found])}
