"""How a child process is started with less than the gateway itself has: limits, another user, a sandbox.

Nothing runs between fork and exec, which would be unsafe beside threads: limits and user are set by a small program
that then becomes the child (`confine_main`), and the sandbox is bubblewrap. No variable of the child is on a command
line, where any user of the machine could read it.
"""

import ctypes
import os
import pwd
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors.protocol.table import Confinement, Sandbox, StdioTarget
from gateway.wire import confine_main
from gateway.wire.errors import SpawnError

BUBBLEWRAP: Final = "bwrap"
_PROGRAMS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Beside /usr: the program, and what the loader and the libraries need. Often links into /usr."""
_SETTINGS: Final = (
    *("ld.so.cache", "alternatives", "localtime", "mime.types", "nsswitch.conf", "passwd", "group"),
    *("ca-certificates", "crypto-policies", "ssl/certs", "ssl/cert.pem", "ssl/ca-bundle.pem", "ssl/openssl.cnf"),
    *("pki/ca-trust", "pki/nssdb", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf"),
)
"""Of /etc, which also holds secrets, what programs want to read: certificates, and not the keys that stand beside."""
_NETWORK: Final = ("resolv.conf", "hosts", "services", "protocols", "host.conf", "gai.conf")
_NO_NEW_PRIVS: Final = 38
"""PR_SET_NO_NEW_PRIVS of prctl(2)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The user as whom a child runs, where he is another one, and the variables that are different for him."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    env: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """As `confine_main` takes it."""
        return f"{self.uid}:{self.gid}:{','.join(map(str, self.groups))}"


def forbid_new_privileges() -> bool:
    """From now on no program that this thread, or one that it starts, runs can gain privileges by being set-user-ID
    (prctl(2)); there is no way back. Whether the system has that: Linux has."""
    if sys.platform != "linux":
        return False
    with suppress(AttributeError, OSError):
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
    return False


def identity(confinement: Confinement | None) -> Identity | None:
    """Whom the child runs as, if not as the gateway. Raises SpawnError."""
    name = confinement.user if confinement is not None else None
    if name is None:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise SpawnError(f"there is no user {name!r}") from None
    if entry.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise SpawnError(f"it is to run as {name!r}, and only a gateway that runs as root can start it so")
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    home = entry.pw_dir if os.path.isdir(entry.pw_dir) else "/"
    env = (("HOME", home), ("USER", name), ("LOGNAME", name))
    return Identity(entry.pw_uid, entry.pw_gid, groups, home, env)


def command_line(target: StdioTarget, env: Mapping[str, str], who: Identity | None = None) -> list[str]:
    """The words by which the child is started, as somebody else if that is said. `env` is its environment, by which its
    program is looked up. Raises SpawnError, and FileNotFoundError where there is no such program."""
    words, confinement = [target.command, *target.args], target.confinement
    if confinement is None:
        return words
    program = find(target.command, target.cwd, env.get("PATH", os.defpath))
    if program is None:
        raise FileNotFoundError(target.command)
    words[0] = program
    if confinement.sandbox is not None:
        if not is_visible(program, confinement.sandbox, target.cwd):
            raise SpawnError(f"its sandbox has no folder with {program}: name that in `folders`")
        words = [*_bubblewrap(confinement.sandbox, target.cwd, env), *words]
    given = [(name, getattr(confinement, name)) for name in confine_main.LIMITS] + [("user", who)]
    limits = [f"{name}={value}" for name, value in given if value is not None]
    return [sys.executable, "-I", "-S", confine_main.__file__, *limits, "--", *words] if limits else words


def find(command: str, cwd: str | None, path: str | None) -> str | None:
    """The path of a program, as the child would look it up: by PATH, or from its own directory."""
    name = os.path.join(cwd or "", command) if "/" in command else command
    found = shutil.which(name, path=path)
    return None if found is None else os.path.abspath(found)


def is_visible(program: str, sandbox: Sandbox, cwd: str | None) -> bool:
    """Whether a program is in a sandbox, with the file that it is a link to."""
    roots = [Path("/usr"), *map(Path, _PROGRAMS), *(Path(folder) for folder in (*sandbox.read, *sandbox.write))]
    if cwd is not None:
        roots.append(Path(cwd))
    places = {Path(program), Path(os.path.realpath(program))}
    return all(any(place.is_relative_to(root) for root in roots) for place in places)


def _bubblewrap(sandbox: Sandbox, cwd: str | None, env: Mapping[str, str]) -> Iterator[str]:
    """Not `--die-with-parent`, which means the thread that forked: `Guardian` ends what outlives us. Not
    `--new-session`: the child has a session without a terminal, and must stay in the group that is ended."""
    bubblewrap = shutil.which(BUBBLEWRAP)
    if bubblewrap is None:
        raise SpawnError(f"its sandbox needs bubblewrap, and there is no `{BUBBLEWRAP}` on PATH")
    yield from (bubblewrap, "--unshare-all", "--cap-drop", "ALL")
    if sandbox.network:
        yield "--share-net"
    yield from ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--ro-bind", "/usr", "/usr")  # noqa: S108
    for path in _PROGRAMS:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)
    for name in (*_SETTINGS, *(_NETWORK if sandbox.network else ())):
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    if home := env.get("HOME", "").rstrip("/"):
        yield from ("--tmpfs", home)
    folders = dict.fromkeys((*sandbox.read, *([cwd] if cwd is not None else [])), "--ro-bind")
    folders |= dict.fromkeys(sandbox.write, "--bind")
    for path in sorted(folders):  # a folder comes before what is in it
        yield from (folders[path], path, path)
    yield from ("--chdir", cwd or "/", "--")
