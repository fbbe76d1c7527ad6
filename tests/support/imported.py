"""What a gateway imports sooner or later: for a process that others are forks of (`forked`)."""

import gc
from importlib import import_module

gc.disable()  # nothing of it is garbage
for _name in (
    "gateway.app",
    "gateway.cli",
    "gateway.config.loading",
    "gateway.oauth.login",
    "gateway.oauth.service",
    "gateway.store.redis.store",
    "gateway.upstream_auth",
    "structlog.dev",
):
    import_module(_name)
gc.freeze()  # what there is stays: no fork looks through it, which would copy it
gc.enable()
