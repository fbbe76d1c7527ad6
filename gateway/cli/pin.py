"""`stagedoor pin`: what servers define at present, beside what was accepted of it."""

import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import trio

from gateway.cli.client import Parts
from gateway.cli.common import ConfigProblemsError, config_problems, file_argument, json_option
from gateway.cli.output import print_json, printable
from gateway.config import ConfigError, Problem, Settings

if TYPE_CHECKING:
    from actors.protocol.definitions import Definitions
    from actors.protocol.pins import Difference

LINES = 200
"""Of the difference of one definition."""
NAMED = 6
"""Letters of a tool's name from which on another server's text is looked at for it: shorter ones are words."""

Found = dict[str, "list[Difference]"]


@click.command()
@file_argument
@click.option("--accept", is_flag=True, help="Take what is different into the lock file.")
@click.option("--server", "only", multiple=True, metavar="NAME", help="This server alone; may be repeated.")
@json_option
@click.pass_obj
def pin(
    parts: Callable[[], Parts],
    /,
    *,
    file: str,
    accept: bool,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Connect to each server of FILE, and show what it defines otherwise than was accepted.

    Without a lock file (stagedoor.lock beside FILE) one is written, with all that there is. With one, exit status 1
    when something is different, or a server does not work; --accept takes what is different.
    """
    from gateway.config.loading import load_unpinned

    with config_problems():
        settings = load_unpinned(Path(file)).settings
    unknown = sorted({*only} - settings.table.backends.keys())
    if unknown:
        raise click.UsageError(f"there is no server {unknown[0]!r}")
    place = settings.lock
    assert place is not None  # there is a file
    text, locked = _read(place)
    names = only or tuple(settings.table.backends)
    defined = trio.run(parts().define, settings, names)
    troubles = {name: said for name, said in defined.items() if isinstance(said, str)}
    present = {name: said for name, said in defined.items() if not isinstance(said, str)}
    found = {name: differences(locked.get(name), said) for name, said in present.items()}
    gone = [] if only else sorted(locked.keys() - settings.table.backends.keys())
    differs = any(found.values()) or bool(gone)
    writes = bool(present or gone) and ((accept and differs) or text is None)
    if writes:
        kept = {name: one for name, one in locked.items() if name not in gone}
        _write(place, text, {**kept, **{n: said for n, said in present.items() if found[n] or n not in locked}})
    notes = [*suspicions({**locked, **present}, settings.table.separator)]
    if as_json:
        print_json(_told(place, found, troubles, gone, notes, writes))
    else:
        _print(place, found, gone, notes, first=text is None, writes=writes)
        _print_troubles(troubles)
    raise SystemExit(1 if troubles or (differs and not writes) else 0)


# The file ---------------------------------------------------------------------------------------------------------


def _read(place: Path) -> "tuple[str | None, dict[str, Definitions]]":
    from gateway.config.locks import parsed
    from gateway.config.snapshot import lock_text

    try:
        text = lock_text(place)
        return text, parsed(text) if text is not None else {}
    except ValueError as error:
        problem = Problem(printable(f"can't be used: {error}"), file=str(place))
        raise ConfigProblemsError(ConfigError([problem])) from error


def _write(place: Path, before: str | None, servers: "Mapping[str, Definitions]") -> None:
    """Replaces the file as a whole, unless somebody else has meanwhile."""
    import msgspec

    from actors.protocol.definitions import written
    from gateway.config.snapshot import lock_text

    data = written({n: msgspec.Raw(msgspec.json.encode(servers[n])) for n in sorted(servers)}, indented=True)
    target = place.resolve()
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if before is not None else 0o644
        fresh = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            if lock_text(place) != before:
                raise click.ClickException(f"{place} was changed meanwhile: nothing was written")
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(f"{place} can't be written: {error.strerror}") from error


def compared(parts: Callable[[], Parts], settings: Settings) -> dict[str, int]:
    """By server that is pinned, how many differences there are to what was accepted; of those that work."""
    names = tuple(name for name, spec in settings.table.backends.items() if spec.pins is not None)
    if not names or settings.lock is None:
        return {}
    _, locked = _read(settings.lock)
    defined = trio.run(parts().define, settings, names)
    return {n: len(differences(locked.get(n), said)) for n, said in defined.items() if not isinstance(said, str)}


# What is different ------------------------------------------------------------------------------------------------


def differences(accepted: "Definitions | None", present: "Definitions") -> "list[Difference]":
    """What a server defines otherwise than was accepted, and what of it nobody sees."""
    from actors.protocol.pins import Pins
    from actors.protocol.subjects import LISTED

    pins = Pins("block", accepted)
    found = [d for m, kind in LISTED.items() for d in pins.judge(kind, present.lists.get(m, ()), whole=True).told]
    said = present.introduction
    introduced = pins.introduced(said.instructions if said is not None else None)
    return [*([introduced] if introduced is not None else []), *found]


def suspicions(servers: "Mapping[str, Definitions]", separator: str) -> Iterator[str]:
    """What looks as if one server wanted to be taken for another, or to speak for it."""
    from actors.protocol import payload as raw
    from actors.protocol.aggregate import item_name
    from actors.protocol.lookalikes import alike

    tools = {server: one.lists.get("tools/list", []) for server, one in servers.items()}
    named = {server: [item_name(tool) or "" for tool in listed] for server, listed in tools.items()}
    for group in alike(dict.fromkeys(name for names in named.values() for name in names)):
        owners = [f"{name} of {s}" for name in group for s in named if name in named[s]]
        yield f"these names look alike: {', '.join(owners)}"
    for server, listed in tools.items():
        for tool in listed:
            text = raw.text_member(tool, "description") or ""
            for other, names in named.items():
                words = {f"{other}{separator}{n}" for n in names} | {n for n in names if len(n) >= NAMED and "_" in n}
                spoken = sorted(w for w in words if other != server and re.search(rf"\b{re.escape(w)}\b", text))
                if spoken:
                    yield f"{server}: tool {item_name(tool)} speaks of {spoken[0]} of {other}"


def lines_of(difference: "Difference") -> list[str]:
    """The difference line by line, with what nobody sees written out."""
    from actors.protocol.lookalikes import shown

    before, after = (_lines(form, difference.kind) for form in (difference.before, difference.after))
    lines = [*unified_diff(before, after, "accepted", "present", lineterm="", n=2)][2:]
    more = [f"... {len(lines) - LINES} lines more"] if len(lines) > LINES else []
    return [printable(shown(line)) for line in (*lines[:LINES], *more)]


def _lines(form: str, kind: str) -> list[str]:
    if not form or kind == "instructions":
        return form.splitlines()
    return json.dumps(json.loads(form), indent=2, ensure_ascii=False).splitlines()


def _print(place: Path, found: Found, gone: list[str], notes: list[str], *, first: bool, writes: bool) -> None:
    from actors.protocol.lookalikes import shown

    for server, different in found.items():
        if not first:
            for one in different:
                click.echo(printable(shown(f"{server}: {one.kind} {one.name}: {one.change}".replace(" :", ":"))))
                for line in lines_of(one) if one.change != "removed" else ():
                    click.secho(f"  {line}", fg={"+": "green", "-": "red"}.get(line[:1]))
        for one in different:
            for what in one.unseen:
                click.secho("warning: ", fg="yellow", nl=False, err=True)
                click.echo(printable(shown(f"{server}: {one.kind} {one.name}: {what}")), err=True)
    for server in gone:
        click.echo(printable(f"{server}: is not configured any more"))
    for note in notes:
        click.secho("warning: ", fg="yellow", nl=False, err=True)
        click.echo(printable(shown(note)), err=True)
    total = sum(map(len, found.values()))
    if writes:
        what = f"{total} definitions of {len(found)} servers" if first else f"{total} differences"
        click.echo(f"{place}: {what} written")
    elif total or gone:
        click.echo(f"{total} differences; --accept takes them")
    elif not first:
        click.echo("everything is as it was accepted")


def _print_troubles(troubles: Mapping[str, str]) -> None:
    for name, why in troubles.items():
        click.secho(f"server {printable(name)!r}: ", fg="red", nl=False, err=True)
        click.echo(printable(why), err=True)


def _told(
    place: Path, found: Found, troubles: Mapping[str, str], gone: list[str], notes: list[str], writes: bool
) -> dict[str, Any]:
    servers = {name: {"differences": [_entry(one) for one in different]} for name, different in found.items()}
    return {
        "lock": str(place),
        "written": writes,
        "servers": {**servers, **{name: {"error": why} for name, why in troubles.items()}},
        "gone": gone,
        "notes": notes,
    }


def _entry(one: "Difference") -> dict[str, Any]:
    entry: dict[str, Any] = {"kind": one.kind, "name": one.name, "change": one.change, "unseen": [*one.unseen]}
    for place, form in (("before", one.before), ("after", one.after)):
        if form:
            entry[place] = form if one.kind == "instructions" else json.loads(form)
    return entry
