"""Which tools of a backend the configuration lets through: `enabledTools` and `disabledTools`."""

from fnmatch import fnmatchcase

from actors.protocol.table import BackendSpec


def filtered(spec: BackendSpec) -> bool:
    """Whether there is anything to filter."""
    return spec.enabled_tools is not None or bool(spec.disabled_tools)


def shown(spec: BackendSpec, name: str) -> bool:
    """Whether this tool may be seen and called, by the backend's own name for it."""
    if any(fnmatchcase(name, pattern) for pattern in spec.disabled_tools):
        return False
    return spec.enabled_tools is None or any(fnmatchcase(name, pattern) for pattern in spec.enabled_tools)
