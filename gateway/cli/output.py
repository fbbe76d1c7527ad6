"""How commands print: tables for people, tab-separated lines for pipes, JSON for programs.

What servers say about themselves is not trusted: it must not steer the terminal.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

_CONTROL = {code: "\ufffd" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}

NAME = 40
"""Characters of the first column of a table that are not folded where the terminal is narrow."""


def printable(text: str) -> str:
    """The text without control characters but for line breaks and tabs."""
    return text.translate(_CONTROL).encode("utf-8", "replace").decode()


def print_json(value: Any) -> None:
    """One JSON document, indented, in ASCII where the text could do harm."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=not sys.stdout.isatty()))


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; elsewhere one line a row, cells separated by tabs, whole."""
    cells = [[" ".join(printable(cell).split()) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in cells:
            click.echo("\t".join(row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        # By what stands first other commands name it: it is copied in one piece.
        whole = index == 0 and all(len(row[0]) <= NAME for row in cells)
        table.add_column(column, overflow="fold", no_wrap=whole, style="bold" if index == 0 else None)
    for row in cells:
        table.add_row(*map(Text, row))  # Text: in a plain string, rich would read [brackets] as markup
    Console().print(table)
