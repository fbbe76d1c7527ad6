"""`fork.py SOCKET ARGUMENT…`: the program of `forks.py SOCKET`, on the pipes of this process, to its end."""

import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    socket.send_fds(connection, ["\0".join(["!", *sys.argv[2:]]).encode()], [0, 1, 2])
    os.close(0)
    os.close(1)
    connection.recv(1)  # the end: the child has ended
