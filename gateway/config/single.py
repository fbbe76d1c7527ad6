"""One in-process server without a configuration file: served as it is, under its own names."""

from dataclasses import replace
from typing import Any

from actors.protocol.table import BackendSpec, Endpoint, NativeTarget, Table
from gateway.config.problems import ConfigError, Problem
from gateway.config.references import Loaded, import_object, is_server, load_anew
from gateway.config.settings import Settings

NAME = "native"


def native_settings(target: str, reload: bool = False) -> Settings:
    """Settings with this server (`gateway.config.references`), and every default. ConfigError says why it can't be
    had. `reload`: it can be loaded anew."""
    loaded = None
    try:
        if reload:
            loaded = load_server(target)
        server = loaded.found if loaded else server_of(import_object(target))
    except ValueError as error:
        raise ConfigError([Problem(str(error), file=target)]) from error
    except ConfigError as error:
        raise ConfigError([replace(problem, file=target) for problem in error.problems]) from error
    return replace(settings_of(server, digest=target), reload=loaded)


def settings_of(server: Any, *, digest: str) -> Settings:
    """The settings for a server that is there already."""
    spec = BackendSpec(NAME, NativeTarget(server))
    return Settings(Table({NAME: spec}, {"": Endpoint("", "transparent", (NAME,))}, digest=digest), prestart=False)


def load_server(target: str, before: Loaded | None = None) -> Loaded:
    """The server, so that it can be loaded anew; ConfigError, and whatever else `load_anew` raises."""
    return load_anew(target, before, server_of)


def server_of(found: Any) -> Any:
    """The server that was found, or that the function that was found makes with every default. ConfigError."""
    if is_server(found):
        return found
    from gateway.config.natives import made  # with a library that most servers here do without

    return made(found, {}, lambda path: path)
