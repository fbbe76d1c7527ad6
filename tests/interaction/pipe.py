"""The child process of a stdio backend: its standard streams are those of a socket, at whose other end the test is."""

import os
import socket
import sys
import threading

peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])


def from_gateway() -> None:
    while data := os.read(0, 65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)


threading.Thread(target=from_gateway, daemon=True).start()
while received := peer.recv(65536):
    written = 0
    while written < len(received):
        written += os.write(1, received[written:])
os._exit(0)
