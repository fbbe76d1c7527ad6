"""The Lua functions, as they are loaded into Redis: `lua/<name>.lua`, with what it shares with others behind its first
line (a call pays for every line that is there)."""

from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files

NAMES = (
    "append", "beat", "claim", "create", "delete", "drop", "due", "end", "mend", "open", "post", "probe", "read",
    "register", "release", "restore", "resume", "save", "shelf", "take", "touch", "trim", "withdraw", "written",
)  # fmt: skip

SHARED = {"post": "inbox", "resume": "inbox", "withdraw": "inbox", "shelf": "", "take": ""}
"""What stands before a function, if it is not the prelude of the session functions; "" for nothing."""


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
    folder = files(__package__).joinpath("lua")
    shared = {name: folder.joinpath(f"{name}.lua").read_text() for name in ("prelude", *SHARED.values()) if name}
    shared[""] = ""
    return {name: _load(name, shared[SHARED.get(name, "prelude")]) for name in NAMES}


SCRIPTS = load()
SHA = {name: script.sha for name, script in SCRIPTS.items()}
