"""The clock of leases and lifetimes: it goes on while the machine is suspended, where there is such a clock."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds since some moment; of use only in this process and its differences."""
    return time.clock_gettime(_CLOCK)
