"""Ports for the programs of tests that can't choose one themselves. The lots of a run, and runs beside it, share a
machine: what one of them was given must not be taken by another before its program listens there."""

import os
import random
import socket
from collections import deque
from itertools import chain

RANGE = range(20_000, 32_768)
"""Below those that systems give to sockets which ask for none in particular (Linux: from 32768 on)."""
HELD = 256
"""Claims that a process keeps at once. The oldest go first: their ports are listened on by then, or not needed."""

_claims: deque[int] = deque()


def free_port() -> int:
    """A port of 127.0.0.1 where nobody listens. No other process is given it, here or by the kernel, while this one
    runs and claims no more than `HELD` others."""
    first = random.randrange(len(RANGE))
    for port in chain(RANGE[first:], RANGE[:first]):
        claim = _claim(port)
        if claim is not None:
            if len(_claims) == HELD:
                os.close(_claims.popleft())
            _claims.append(claim)
            return port
    raise OSError("no port is free")


def _claim(port: int) -> int | None:
    """A descriptor that stands for the port until it is closed; None if it is another's, or somebody listens there."""
    # The UDP port of the same number is the claim: only one socket can have it, and it ends with its process.
    with socket.socket(type=socket.SOCK_DGRAM) as claim, socket.socket() as place:
        try:
            claim.bind(("127.0.0.1", port))
            place.bind(("127.0.0.1", port))
        except OSError:
            return None
        return claim.detach()
