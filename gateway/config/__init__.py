"""Configuration: one file of JSON with comments, or YAML, becomes one frozen value, `Settings`."""

from gateway.config.advice import advice
from gateway.config.demo import demo_settings
from gateway.config.loading import Loaded, import_object, load
from gateway.config.problems import ConfigError, Problem
from gateway.config.settings import Address, Auth, LogSettings, Settings, Tls
from gateway.config.single import native_settings
from gateway.config.values import parse_address, parse_listen, parse_store

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
