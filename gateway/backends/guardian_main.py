"""The guardian: a process that ends the gateway's child process groups when the gateway has died.

Run as a script with its standard input being a pipe whose only writer is the gateway. Lines `+<pgid>` and `-<pgid>`
add and remove a group. At the end of input (the gateway is gone, however it went) every group that is left gets TERM,
and KILL after a second. It imports little, since it lives as long as the gateway.
"""

import os
import signal
import sys
import time

GRACE = 1.0
"""Seconds between TERM and KILL."""


def signal_groups(groups: set[int], signum: int) -> None:
    """Signals each group; one that is gone is removed."""
    for group in tuple(groups):
        try:
            os.killpg(group, signum)
        except (ProcessLookupError, PermissionError):
            groups.discard(group)


def main() -> None:
    """Follows standard input to its end, then ends what is left."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    signal_groups(groups, signal.SIGTERM)
    if groups:
        time.sleep(GRACE)
    signal_groups(groups, signal.SIGKILL)


if __name__ == "__main__":
    main()
