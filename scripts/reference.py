"""Writes docs/api.md, the reference of the public API, from the docstrings. A test keeps the two equal."""

from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "api.md"
PACKAGES = {"stagedoor": "[How it is used](native-servers.md).", "gateway.client": "[How it is used](client.md)."}
SPECIAL = ("__init__", "__str__")
"""What nobody looks for by its name."""


def reference() -> str:
    """The whole document."""
    lines = ["# API reference", "", "Made of the docstrings by `scripts/reference.py`.", ""]
    loader = griffe.GriffeLoader(search_paths=[ROOT])
    loader.load("gateway")
    for name, more in PACKAGES.items():
        package = loader.load(name)
        loader.resolve_aliases()
        lines += [f"## `{name}`", "", package.docstring.value if package.docstring else "", "", more, ""]
        for exported in sorted(map(str, package.exports or ()), key=str.lower):
            lines += entry(package[exported])
    return "\n".join(lines).rstrip() + "\n"


def entry(member: griffe.Object | griffe.Alias) -> Iterator[str]:
    """A class with its members, a function, or a value."""
    found = member.final_target if isinstance(member, griffe.Alias) else member
    yield from (f"### `{found.name}`", "", "```python", declared(found), "```", "", said(found), "")
    if isinstance(found, griffe.Class):
        bare = not called(found)
        for part in found.members.values():
            if part.is_public and part.name not in SPECIAL and (part.docstring or (bare and part.is_attribute)):
                words = f": {said(part)}" if part.docstring else ""
                yield f"- **`{declared(part)}`**{words}".replace("\n", "\n  ").replace("\n  \n", "\n\n")
        yield ""


def called(found: griffe.Class) -> bool:
    """Whether it says by itself how it is made."""
    return "__init__" in found.members or found.has_labels("dataclass")


def declared(found: griffe.Object | griffe.Alias) -> str:
    """As it stands in the source, without its body."""
    if isinstance(found, griffe.Class):
        if called(found):
            return f"{found.signature()}".replace(" -> None", "")
        bases = ", ".join(map(str, found.bases))
        return f"class {found.name}({bases})" if bases else f"class {found.name}"
    if isinstance(found, griffe.Function):
        return f"{'async ' if found.has_labels('async') else ''}{found.signature()}"
    if str(found.annotation) == "TypeAlias":
        return f"{found.name} = {found.value}"
    return f"{found.name}: {found.annotation}" if found.annotation is not None else found.name


def said(found: griffe.Object | griffe.Alias) -> str:
    return found.docstring.value if found.docstring else ""


if __name__ == "__main__":
    DOCUMENT.write_text(reference())
