"""`forking.py SOCKET ARGUMENT…`: a program that starts at once. The process that `forks` there has everything imported,
and does it in a child, with the arguments, the pipes and what the suite says in the environment of this process.
Starting Python, the SDK and a gateway for each scenario takes longer than all that a suite does with them."""

import gc
import os
import signal
import socket
import sys


def forks(path: str, places: int) -> list[str]:
    """Forks for whoever connects, `places` at a time; returns in each child, with its arguments."""
    gc.freeze()  # what there is stays: no child looks through it, which would copy it
    gc.set_threshold(10_000)  # and none lives long
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen(64)
        os.rename(f"{path}.new", path)  # who finds it there can connect
        running = 0
        while True:
            if running == places:
                os.wait()
                running -= 1
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            running += 1
            connection.close()
    connection.set_inheritable(False)
    told, pipes, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    connection.detach()  # ends with this process, which tells the one that waits
    arguments, around = (part.split("\0") for part in told.decode().split("\0\0"))
    os.environ.update(variable.split("=", 1) for variable in around if variable)
    return arguments


def over() -> None:
    """Ends a child. Python would first take apart all that is imported, and copy it for that."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def forked(path: str, arguments: list[str]) -> None:
    """Has it done, and returns when the child has ended."""
    around = (f"{name}={value}" for name, value in os.environ.items() if name.startswith("MCP_"))
    told = "\0\0".join(("\0".join(arguments), "\0".join(around)))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [told.encode()], [0, 1, 2])
        connection.recv(1)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    forked(sys.argv[1], sys.argv[2:])
