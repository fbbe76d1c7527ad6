"""The Lua functions, as they are loaded into Redis: `lua/<name>.lua` with the prelude behind its first line."""

from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files

NAMES = (
    "append", "beat", "claim", "create", "delete", "drop", "due", "end", "mend", "open", "probe", "read",
    "register", "release", "restore", "save", "touch", "trim", "written",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """A function: its text, and the digest by which EVALSHA names it."""

    text: str
    sha: str


def _load(name: str, prelude: str) -> Script:
    shebang, body = files(__package__).joinpath("lua", f"{name}.lua").read_text().split("\n", 1)
    text = f"{shebang}\n{prelude}\n{body}"
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def load() -> dict[str, Script]:
    """All functions by name."""
    prelude = files(__package__).joinpath("lua", "prelude.lua").read_text()
    return {name: _load(name, prelude) for name in NAMES}


SCRIPTS = load()
SHA = {name: script.sha for name, script in SCRIPTS.items()}
