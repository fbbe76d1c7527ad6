"""What must hold of a Redis before it is used."""

import secrets
import ssl
from collections.abc import Iterator

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeout

from actors.ports import Log
from gateway.store.errors import StoreError
from gateway.store.redis.errors import (
    LinkDown,
    StoreDenied,
    StoreLoading,
    StoreTooOld,
    StoreUnreachable,
    StoreUntrusted,
)
from gateway.store.redis.links import Command, Link, Reply
from gateway.store.redis.scripts import SCRIPTS, SHA
from gateway.store.redis.targets import Target

OLDEST = (7, 0)

ADVICE = "docs/operations.md lists the rights that are needed"

RIGHTS = (
    "resetkeys", "~sd:*", "-@all", "+select", "+info", "+client|setname",
    "+client|info", "+client|kill", "+script|load", "+evalsha", "+time", "+exists", "+get", "+set", "+del", "+unlink",
    "+pttl", "+pexpire", "+hset", "+hmget", "+hgetall", "+hkeys", "+hdel", "+hincrby", "+xadd", "+xrange", "+xtrim",
    "+xlen", "+xdel", "+xreadgroup", "+xgroup|create", "+xgroup|setid", "+xinfo|groups", "+xinfo|stream", "+xsetid",
    "+hlen", "+sadd", "+srem", "+sscan", "+sismember", "+zadd", "+zrem", "+zrange",
)  # fmt: skip
"""The ACL rules of a user that can do all that a store on one primary needs, and no more."""

CLUSTER_RIGHTS = (*RIGHTS, "+cluster|slots")
"""The same on each node of a Redis Cluster."""


def check(target: Target, link: Link, log: Log) -> None:
    """Raises StoreUnreachable (StoreLoading), StoreUntrusted, StoreDenied or StoreTooOld, or StoreError if it is no
    primary; warns of settings that lose data."""
    try:
        (info,) = link.exchange([("INFO", "everything")])
        denied = _denied(info, link)
    except LinkDown as error:
        raise explain(target, error) from error
    if denied:
        raise StoreDenied(f"{target.shown}: this user may not run {', '.join(denied)}; {ADVICE}")
    if isinstance(info, Exception):
        raise StoreError(f"{target.shown}: {info}")
    facts = _facts(info)
    version = facts.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise StoreTooOld(f"{target.shown} is Redis {version}; Stagedoor needs 7.0 or later (or Valkey)")
    if facts.get("role") == "slave":
        primary = f"{facts.get('master_host')}:{facts.get('master_port')}"
        raise StoreError(f"{target.shown} is a replica, which takes no writes: name its primary ({primary})")
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        log.warning("store_may_evict", store=target.shown, policy=policy, advice="set maxmemory-policy noeviction")
    if facts.get("aof_enabled") == "0":
        log.warning(
            "store_not_persistent", store=target.shown, advice="set appendonly yes, else a restart loses sessions"
        )


def _denied(info: Reply, link: Link) -> list[str]:
    """The commands that this user may not run."""
    place = f"sd:{{{secrets.token_hex(8)}}}:probe"
    keys = [f"{place}:{kind}" for kind in ("hash", "stream", "set", "sorted", "string")]
    calls: dict[str, Command] = {
        "CLIENT INFO": ("CLIENT", "INFO"),
        "CLIENT KILL": ("CLIENT", "KILL", "ID", 2**63 - 1),
        "SCRIPT LOAD": ("SCRIPT", "LOAD", SCRIPTS["probe"].text),
        "EVALSHA": ("EVALSHA", SHA["probe"], len(keys), *keys),
    }
    replies = [info, *link.exchange(list(calls.values()))]
    denied = [
        name for name, reply in zip(["INFO", *calls], replies, strict=True) if isinstance(reply, NoPermissionError)
    ]
    found = replies[-1]
    return denied + [name.decode() for name in found[1]] if isinstance(found, list) else denied


def explain(target: Target, error: LinkDown) -> StoreError:
    """The typed error of a connection that could not be made."""
    for cause in _causes(error):
        match cause:
            case BusyLoadingError():
                return StoreLoading(f"{target.shown} reads its file, and serves nobody meanwhile")
            case NoPermissionError():
                return StoreDenied(f"{target.shown}: {cause}; {ADVICE}")
            case AuthenticationError() | AuthorizationError():
                return StoreDenied(
                    f"{target.shown} refuses the credentials: {error}; give user and password in the store URL"
                )
            case ssl.SSLCertVerificationError():
                # Not as `?ssl_ca_certs=FILE`: the log hides what stands in the query of a URL.
                return StoreUntrusted(
                    f"the certificate of {target.shown} is not trusted: {cause.verify_message}; "
                    "name the CA's file in the store URL, as ssl_ca_certs"
                )
            case ssl.SSLError() | ConnectionResetError() | BrokenPipeError() if target.tls:
                return StoreUnreachable(f"no TLS with {target.shown}: {cause}{_hint(target)}")
            case ResponseError() if "HELLO" in str(cause) or "NOPROTO" in str(cause):
                return StoreTooOld(f"{target.shown} does not speak the protocol of Redis 7 (HELLO 3): {cause}")
            case ResponseError():
                return StoreError(f"{target.shown} answers with an error: {cause}")
            case RedisTimeout() if target.tls:
                return StoreUnreachable(f"no Redis answers at {target.shown}: {cause}; one without TLS has redis://")
    return StoreUnreachable(f"no Redis answers at {target.shown}: {error}")


def _hint(target: Target) -> str:
    # A server that asks in vain for a certificate (TLS 1.3) ends a connection that was established: as an alert, an
    # end of file or a reset, by chance.
    if "ssl_certfile" in target.options():
        return ""
    return "; if it wants a certificate of ours, give ssl_certfile and ssl_keyfile in the store URL"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _facts(info: bytes) -> dict[str, str]:
    lines = info.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
