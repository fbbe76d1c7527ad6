"""The store in Redis: in the loop a writer with group commit for each primary, and a reader of mail; threads for
replays, for the lease, and for those of the other replicas.

async with open_redis_store("redis://127.0.0.1:6379/0", limits, log=log, on_lost=end_the_process) as store:
    ...
"""

from gateway.store.errors import StoreError
from gateway.store.redis.errors import (
    StoreDenied,
    StoreKeysDiffer,
    StoreTooOld,
    StoreUnreachable,
    StoreUntrusted,
    StoreUrlError,
)
from gateway.store.redis.store import RedisStore, open_redis_store

__all__ = [
    "RedisStore",
    "StoreDenied",
    "StoreError",
    "StoreKeysDiffer",
    "StoreTooOld",
    "StoreUnreachable",
    "StoreUntrusted",
    "StoreUrlError",
    "open_redis_store",
]
