"""One in-process server without a configuration file: served as it is, under its own names."""

from dataclasses import replace
from pathlib import Path

from actors.protocol.table import Endpoint
from gateway.config.build import Resolve
from gateway.config.document import Document
from gateway.config.loading import import_object, settings_from
from gateway.config.settings import Settings

NAME = "native"


def native_settings(target: str, resolve: Resolve = import_object) -> Settings:
    """Settings with this server, `module:attribute` (of a module alone its `server`), and every default."""
    given = {"mcpServers": {NAME: {"native": target}}}
    settings = settings_from(Document(given, {}, "--native", Path.cwd()), {}, resolve)
    endpoints = {**settings.table.endpoints, "": Endpoint("", "transparent", (NAME,))}
    return replace(settings, table=replace(settings.table, endpoints=endpoints))
