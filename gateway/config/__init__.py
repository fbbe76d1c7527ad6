"""Configuration: one file of JSON with comments, or YAML, becomes one frozen value, `Settings`. What reads files takes
a while to load, and is imported when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gateway.config.addresses import parse_address, parse_listen
from gateway.config.problems import ConfigError, Problem
from gateway.config.references import import_object
from gateway.config.settings import Address, Auth, LogSettings, Settings, Tls
from gateway.config.single import native_settings

if TYPE_CHECKING:
    from gateway.config.advice import advice
    from gateway.config.demo import demo_settings
    from gateway.config.loading import Loaded, load
    from gateway.config.values import parse_store

__all__ = [
    "Address",
    "Auth",
    "ConfigError",
    "Loaded",
    "LogSettings",
    "Problem",
    "Settings",
    "Tls",
    "advice",
    "demo_settings",
    "import_object",
    "load",
    "native_settings",
    "parse_address",
    "parse_listen",
    "parse_store",
]

_LATE = {
    "Loaded": "loading",
    "advice": "advice",
    "demo_settings": "demo",
    "load": "loading",
    "parse_store": "values",
}
"""Names by the module that they come from."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    return found
