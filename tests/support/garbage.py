"""What only a garbage collection could free: for tests that all of it is free without one."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


def ours(thing: object) -> bool:
    """Whether its class is the project's."""
    return str(type(thing).__module__).split(".")[0] in ("actors", "gateway")


@contextmanager
def uncollected() -> Iterator[Counter[str]]:
    """Nothing is collected meanwhile; holds, afterwards, the classes of ours of which a collection freed something."""
    found: Counter[str] = Counter()
    gc.disable()
    gc.freeze()  # what there is already is none of our business, and not looked through
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(type(thing).__qualname__ for thing in gc.garbage if ours(thing))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


def alive() -> Counter[str]:
    """What of ours was made since, and is in memory."""
    return Counter(type(thing).__qualname__ for thing in gc.get_objects() if ours(thing))
