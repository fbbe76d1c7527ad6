"""`forks.py SOCKET PROGRAM ARGUMENT…`: a Python program that starts at once, for each `fork.py SOCKET`.

Whatever the program imports is imported here, so it may be run by the Python of any environment; a child that has the
pipes of `fork.py` does the rest of it, and ends as the program does. An SDK takes longer to import than most tests take
to talk with a server on it.
"""

import gc
import os
import runpy
import signal
import socket
import sys


def forked(path: str) -> socket.socket:
    """Forks for whoever connects there, and returns in each child, on its pipes. What is returned tells the end."""
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen(64)
        os.rename(f"{path}.new", path)  # who finds it there can connect
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, handler)
    _, pipes, _, _ = socket.recv_fds(connection, 1, 3)
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    # Those that there are remember what kind of file they had.
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    return connection


def main(path: str, program: str, *arguments: str) -> None:
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(program)
    runpy.run_path(program, run_name="imported")
    gc.freeze()  # what there is stays: no child looks through it, which would copy it
    connection = forked(path)
    runpy.run_path(program, run_name="__main__")
    sys.stdout.flush()
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
