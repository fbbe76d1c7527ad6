"""Listening sockets and TLS. Sockets are opened by whoever composes the process, so that workers can inherit them."""

import errno
import fcntl
import os
import socket
import ssl
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

BACKLOG = 1024
"""Connections that the kernel holds until they are accepted; more are refused by it."""


class CannotListenError(OSError):
    """A listener did not get its address; the text is a sentence for whoever started the gateway."""


_ABSENT = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def open_listeners(host: str, port: int, *, user_timeout: float = 30.0, backlog: int = BACKLOG) -> list[socket.socket]:
    """Listens on every address of `host` ("" or "*": all); with port 0 all share the port of the first.

    On Linux the kernel drops a connection whose peer acknowledges nothing for `user_timeout` seconds; elsewhere only
    the write deadline does. Raises OSError; an address family that this machine lacks is passed over if another works.
    """
    flags = socket.AI_PASSIVE
    found = socket.getaddrinfo(None if host in {"", "*"} else host, port, type=socket.SOCK_STREAM, flags=flags)
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, kind, protocol, _, address in found:
            bound = (address[0], listeners[0].getsockname()[1] if listeners and port == 0 else address[1], *address[2:])
            try:
                listeners.append(_listen(socket.socket(family, kind, protocol), bound, user_timeout, backlog))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                missing = error
    except OSError:
        close_listeners(listeners)
        raise
    if not listeners:
        raise missing or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    return listeners


def open_unix_listener(path: str, *, backlog: int = BACKLOG) -> list[socket.socket]:
    """Listens on a Unix socket that only this user can use. One that a killed process has left there is replaced.
    Raises OSError: EADDRINUSE while somebody listens there, EEXIST where something else has the name."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone_in(Path(path).parent):
            _remove_stale(path)
            listener.bind(path)
            Path(path).chmod(0o600)  # before anybody can connect, which is from `listen` on
            listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return [listener]


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """No two processes at once look for what is stale: the slower one would remove what the other has just made."""
    place = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def _remove_stale(path: str) -> None:
    """Removes a socket on which nobody listens."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is something there that is no socket", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except BlockingIOError:
            return  # somebody listens, and has much to do: `bind` says so


class Name(NamedTuple):
    """What a Unix socket is called, and which file that was when it was made."""

    path: str
    device: int
    inode: int


def names(listeners: Sequence[socket.socket]) -> list[Name]:
    """Of those listeners that have one; to be asked by whoever has opened them, at once."""
    found = []
    for listener in listeners:
        if listener.family == socket.AF_UNIX:
            path = listener.getsockname()
            place = os.stat(path)
            found.append(Name(path, place.st_dev, place.st_ino))
    return found


def remove_names(made: Sequence[Name]) -> None:
    """Nobody finds these sockets any more. To be called while they are open: no file that another process has made
    there since can be taken for ours then."""
    for name in made:
        with suppress(OSError):
            place = os.stat(name.path)
            if (place.st_dev, place.st_ino) == name[1:]:
                os.unlink(name.path)


def unix_listeners_for(what: str, option: str, path: str) -> list[socket.socket]:
    """As `open_unix_listener`; CannotListenError says which listener it is, where, and what to do."""
    try:
        return open_unix_listener(path)
    except OSError as error:
        why, cure = _UNIX_REFUSALS.get(error.errno or 0, (error.strerror or str(error), "choose another path"))
        message = (
            f"the {what} listener can't listen on unix:{path}: {why}; {cure} by `--{option} unix:PATH`"
            f" (or `gateway.{option}` in the configuration)"
        )
        raise CannotListenError(error.errno, message) from error


def listeners_for(what: str, option: str, host: str, port: int, *, in_file: bool = True) -> list[socket.socket]:
    """As `open_listeners`; CannotListenError says which listener it is, which address, and what to do:
    an option, which may stand in a file too."""
    try:
        return open_listeners(host, port)
    except OSError as error:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        why, cure = _REFUSALS.get(error.errno or 0, (error.strerror or str(error), "choose another address"))
        message = f"the {what} listener can't listen on {address}: {why}; {cure} by `--{option} HOST:PORT`"
        message += f" (or `gateway.{option}` in the configuration)" if in_file else ""
        raise CannotListenError(error.errno, message) from error


_IN_USE = (
    "another program listens there already, perhaps a gateway that is still running",
    "end that one, or choose another address",
)
_REFUSALS = {
    errno.EADDRINUSE: _IN_USE,
    errno.EACCES: ("this user may not use that port", "choose one over 1023"),
    errno.EADDRNOTAVAIL: ("this machine does not have that address", "choose one that it has"),
}


_UNIX_REFUSALS = {
    errno.EADDRINUSE: _IN_USE,
    errno.EEXIST: ("there is something there that is no socket", "choose another path"),
    errno.EACCES: ("this user may not write in that folder", "choose another path"),
    errno.ENOENT: ("there is no such folder", "make it, or choose another path"),
}


def close_listeners(listeners: Sequence[socket.socket]) -> None:
    """Closes listeners that nobody serves."""
    for listener in listeners:
        listener.close()


def _listen(listener: socket.socket, address: tuple[object, ...], user_timeout: float, backlog: int) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if sys.platform == "linux":  # accepted sockets inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(user_timeout * 1000))
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def addresses(listeners: Sequence[socket.socket]) -> list[tuple[str, int]]:
    """Host and port of each listener."""
    return [listener.getsockname()[:2] for listener in listeners]


def tls_context(cert: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 and later, offering HTTP/1.1 only. Raises OSError or ssl.SSLError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(cert, key, password=lambda: "")  # else a key with a password asks for it on the terminal
    return context
