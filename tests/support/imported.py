"""What a gateway imports and makes sooner or later: for a process that others are forks of (`forked`)."""

import gc
from importlib import import_module

gc.disable()  # nothing of it is garbage
for _name in (
    "gateway.app",
    "gateway.backends.http_connector",
    "gateway.cli.banner",
    "gateway.cli.serving",
    "gateway.config.loading",
    "gateway.observability.flood",
    "gateway.observability.lines",
    "gateway.oauth.login",
    "gateway.oauth.service",
    "gateway.store.redis.store",
    "gateway.upstream_auth",
    "structlog.dev",
):
    import_module(_name)
import_module("gateway.config.models").File.model_rebuild()  # which the first configuration would have to wait for
gc.freeze()  # what there is stays: no fork looks through it, which would copy it
gc.enable()
