"""What replicas call their keys. Those of one incarnation share a hash tag, and with it a node of a Redis Cluster."""

from typing import Final

REPLICAS: Final = "sd:c:{c}:replicas"
"""A sorted set: every incarnation that lives or has left something, by when it began; 0: it has ended in order."""

SEALING: Final = "sd:c:{c}:sealing"
"""The fingerprint of the key with which the replicas seal."""


def alive_key(incarnation: str) -> str:
    """The string that is there as long as the lease: what the replica says of itself."""
    return f"sd:r:{{{incarnation}}}:alive"


def owned_key(incarnation: str) -> str:
    """The set of sessions that an incarnation may own: all that it does own, and maybe more."""
    return f"sd:r:{{{incarnation}}}:owned"


def inbox_key(incarnation: str) -> str:
    """The Redis Stream of its mail, read by the group `g`."""
    return f"sd:r:{{{incarnation}}}:in"


def seen_key(incarnation: str) -> str:
    """The hash of the last letter of each sender."""
    return f"sd:r:{{{incarnation}}}:seen"


def large_key(incarnation: str) -> str:
    """The hash of the letters that are too large for the inbox, by the names of their entries there."""
    return f"sd:r:{{{incarnation}}}:large"


def withdrawn_key(incarnation: str) -> str:
    """The set of entries that were withdrawn of late."""
    return f"sd:r:{{{incarnation}}}:withdrawn"
