"""The pages on which users connect their accounts, as HTML. Pure; every text of anybody is escaped.

They work without scripts: forms, links, and a refresh. Nothing is loaded from elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

STYLE_PATH: Final = "/connect/style.css"
STYLE: Final = """\
:root { color-scheme: light dark; }
* { box-sizing: border-box; }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 40rem; padding: 1.5rem 1rem; color: #1a1a1a;
  background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; }
dl { margin: 1rem 0; }
dt { font-weight: 600; }
dd { margin: 0 0 .5rem; }
ul { list-style: none; padding: 0; }
li { border-top: 1px solid #767676; padding: 1rem 0; }
button, .button { display: inline-block; font: inherit; font-weight: 600; padding: .6rem 1.2rem;
  margin: .25rem .5rem .25rem 0; border: 2px solid #0b4f9e; border-radius: .4rem; background: #0b4f9e; color: #fff;
  cursor: pointer; text-decoration: none; min-height: 2.75rem; }
button.plain { background: #fff; color: #0b4f9e; }
button:focus-visible, a:focus-visible, input:focus-visible { outline: 3px solid #b35c00; outline-offset: 2px; }
label { display: block; font-weight: 600; }
input { font: inherit; width: 100%; padding: .6rem; margin: .25rem 0 1rem; border: 1px solid #595959;
  border-radius: .4rem; }
form { margin: .5rem 0; }
.note { color: #4d4d4d; }
@media (prefers-color-scheme: dark) {
  body { background: #121212; color: #ededed; }
  .note { color: #bdbdbd; }
  button.plain { background: #121212; color: #8ec5ff; border-color: #8ec5ff; }
  a { color: #8ec5ff; }
  a.button { color: #fff; }
}
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One server in the list of a user's accounts."""

    backend: str
    state: str
    any: bool
    """Whether there is an account."""


def page(title: str, *body: str, onward: str | None = None, root: str = "") -> bytes:
    """A whole page; `onward`: where it goes on by itself; `root`: the path below which all pages are."""
    refresh = f'<meta http-equiv="refresh" content="0;url={escape(onward)}">' if onward is not None else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">{refresh}'
        f'<link rel="stylesheet" href="{escape(root)}{STYLE_PATH}"></head>'
        f"<body><main><h1>{escape(title)}</h1>{''.join(body)}</main></body></html>"
    ).encode()


def text(words: str) -> str:
    """A paragraph."""
    return f"<p>{escape(words)}</p>"


def note(words: str) -> str:
    """A paragraph that explains the one before."""
    return f'<p class="note">{escape(words)}</p>'


def link(to: str, words: str, *, button: bool = False) -> str:
    """A link to another page."""
    kind = ' class="button"' if button else ""
    return f'<p><a href="{escape(to)}"{kind} rel="noreferrer">{escape(words)}</a></p>'


def form(
    action: str, csrf: str, words: str, fields: Iterable[tuple[str, str]] = (), *extra: str, plain: bool = False
) -> str:
    """One button. `fields` go with it unseen, `extra` is shown before it."""
    hidden = "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
        for name, value in (("csrf", csrf), *fields)
    )
    kind = ' class="plain"' if plain else ""
    return (
        f'<form method="post" action="{escape(action)}">{hidden}{"".join(extra)}'
        f"<button{kind}>{escape(words)}</button></form>"
    )


def secret_field(name: str, label: str) -> str:
    """For a token or a key: nothing of it is shown, or kept by the browser."""
    named = f'id="{escape(name)}" name="{escape(name)}"'
    field = f'<input {named} type="password" autocomplete="off" required maxlength="16384">'
    return f'<label for="{escape(name)}">{escape(label)}</label>{field}'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """What a user should know before he decides."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs if value)
    return f"<dl>{rows}</dl>"


def accounts(entries: Sequence[Entry], csrf: str, here: str) -> str:
    """All servers with an account of each user."""
    if not entries:
        return text("No server here needs an account of yours.")
    items = []
    for entry in entries:
        fields = [("backend", entry.backend)]
        words = "Connect again" if entry.any else "Connect"
        buttons = form(here, csrf, f"{words}: {entry.backend}", [*fields, ("action", "connect")])
        if entry.any:
            more = [*fields, ("action", "disconnect")]
            buttons += form(here, csrf, f"Disconnect: {entry.backend}", more, plain=True)
        items.append(f"<li><strong>{escape(entry.backend)}</strong> – {escape(entry.state)}{buttons}</li>")
    return f"<ul>{''.join(items)}</ul>"
