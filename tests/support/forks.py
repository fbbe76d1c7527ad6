"""`forks.py SOCKET PROGRAM ARGUMENT…`: a Python program that starts at once, for each `fork.py SOCKET ARGUMENT…`.

Whatever the program imports is imported here, so it may be run by the Python of any environment. The rest of it is done
by a child with the pipes of `fork.py`, to whose arguments its own are added; neither outlives the other. An SDK takes
longer to import than most tests take to talk with a server on it.
"""

import gc
import os
import runpy
import signal
import socket
import sys
import threading


def forked(path: str) -> tuple[socket.socket, list[str]]:
    """Forks for whoever connects there, and returns in each child, on its pipes. It has what tells of the end of
    `fork.py`, and the arguments of that."""
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
    told, pipes, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    # Those that there are remember what kind of file they had.
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    return connection, told.decode().split("\0")[1:]


def end_with(connection: socket.socket) -> None:
    """When `fork.py` is there no more, this process is not either."""
    connection.recv(1)
    os._exit(1)


def main(path: str, program: str, *arguments: str) -> None:
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(program)
    gc.disable()  # nothing of what is imported is garbage
    runpy.run_path(program, run_name="imported")
    gc.freeze()  # what there is stays: no child looks through it, which would copy it
    gc.enable()
    connection, more = forked(path)
    threading.Thread(target=end_with, args=(connection,), daemon=True).start()
    sys.argv += more
    runpy.run_path(program, run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Python would first take apart all that is imported, and copy it for that


if __name__ == "__main__":
    main(*sys.argv[1:])
