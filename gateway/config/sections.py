"""Where each of the gateway's limits stands in a configuration file.

`actors.protocol.table.Limits` says what the limits are and their defaults; this table gives each a section and a key,
and the models of the sections are made from both.
"""

from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, create_model
from pydantic.alias_generators import to_camel

from actors.protocol.table import Limits
from gateway.config.values import Bound, Count, Duration, Positive


class Section(BaseModel):
    """A named part of a configuration: known keys only, written in camel case."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, defer_build=True)


class LimitKey(NamedTuple):
    """Where one limit is configured. `key` is in Python's spelling, the file has it in camel case."""

    limit: str
    section: str
    key: str

    @property
    def path(self) -> tuple[str, ...]:
        """Where it stands in a file."""
        return ("gateway", self.section, to_camel(self.key))


_RENAMED = {
    "idle_ttl": ("sessions", "idle_ttl"),
    "passivate_after": ("sessions", "passivate_after"),
    "follow_after": ("sessions", "follow_after"),
    "sessions": ("sessions", "max"),
    "replay_ttl": ("replay", "ttl"),
    "replay_ttl_written": ("replay", "ttl_written"),
    "log_events": ("replay", "events"),
    "log_bytes": ("replay", "bytes"),
    "drain_grace": ("drain", "grace"),
    "drain_deadline": ("drain", "deadline"),
    "reload_grace": ("reload", "grace"),
}
"""Limits that do not stand under their own name in `limits`."""

_MAY_BE_ZERO = {
    "follow_after",
    "stream_after",
    "server_request_wait",
    "process_wait",
    "drain_grace",
    "reload_grace",
    "sessions_per_principal",
    "sessions_anonymous",
    "overflow_connections",
    "stderr_lines",
}

PLACES = tuple(LimitKey(name, *_RENAMED.get(name, ("limits", name))) for name in Limits.__dataclass_fields__)
PLACE = {place.limit: place for place in PLACES}


def limits_from(sections: dict[str, Section]) -> Limits:
    """The limits as the sections of a file give them."""
    return Limits(**{place.limit: getattr(sections[place.section], place.key) for place in PLACES})


def _kind(name: str, default: object) -> Any:
    if isinstance(default, int):
        return Bound if name in _MAY_BE_ZERO else Count
    return Duration if name in _MAY_BE_ZERO else Positive


def section(name: str, doc: str) -> type[Section]:
    """The model of one section of limits."""
    defaults = Limits()
    fields: dict[str, Any] = {}
    for place in PLACES:
        if place.section == name:
            default = getattr(defaults, place.limit)
            kind = _kind(place.limit, default)
            fields[place.key] = (kind, default)
    return create_model(name.capitalize() + "Section", __base__=Section, __doc__=doc, **fields)
