"""What the replacement of the table of backends means for those who work by it."""

from msgspec import Struct

from actors.protocol.naming import prefixes
from actors.protocol.table import BackendSpec, Table


class Replaced(Struct, frozen=True):
    """The table is another one; whoever depends on it is told."""

    before: Table


def same_server(before: BackendSpec | None, after: BackendSpec | None) -> bool:
    """Whether a connection that was made as configured before is still one to the configured server."""
    if before is None or after is None:
        return False
    return before.target == after.target and before.sharing == after.sharing


def replaced(before: Table, after: Table) -> frozenset[str]:
    """The backends that are gone, or are other servers than before: what is known of them counts no more."""
    return frozenset(n for n, spec in before.backends.items() if not same_server(spec, after.backends.get(n)))


def touches(before: Table, after: Table, endpoint: str) -> bool:
    """Whether an aggregated endpoint may list other things than before, or list them under other names."""
    was, served = before.endpoints.get(endpoint), after.endpoints.get(endpoint)
    if was != served:
        return True
    # A backend that is on other endpoints only may still be the rival of one here.
    named, renamed = (prefixes(tuple(table.backends), table.separator).by_backend for table in (before, after))
    names = served.backends if served is not None else ()
    return any(named.get(n) != renamed.get(n) or _shown(before, n) != _shown(after, n) for n in names)


def _shown(table: Table, name: str) -> object:
    """What decides over the items that a backend contributes."""
    spec = table.backends.get(name)
    return spec and (spec.target, spec.sharing, spec.enabled_tools, spec.disabled_tools)
