"""What a supervisor says of a worker that it has seen end: that its lease is over, which else would run out later."""

from contextlib import closing

from gateway.store.redis.errors import LinkDown
from gateway.store.redis.lease import ended
from gateway.store.redis.links import open_link, replies_to
from gateway.store.redis.targets import parse


def end_lease(url: str, incarnation: str) -> bool:
    """Takes the sign of life of an incarnation whose process is gone, for sure, from the store at this URL, so that its
    sessions are taken over at once. False: the store can't be reached; then the lease ends by itself."""
    with closing(open_link(parse(url))) as link:
        try:
            replies_to(link, ended(incarnation))
        except LinkDown:
            return False
    return True
