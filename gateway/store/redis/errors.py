"""Why a store can't be used. Each message says what to do; none contains a password."""

# ruff: noqa: N818 - they name conditions

from gateway.store.errors import StoreError


class StoreUrlError(StoreError):
    """The URL is not one that is understood."""


class StoreUnreachable(StoreError):
    """Nothing answers there, or what answers is not Redis."""


class StoreLoading(StoreUnreachable):
    """Redis reads its file."""


class StoreDenied(StoreError):
    """Redis refuses the credentials, or the user lacks a right."""


class StoreUntrusted(StoreError):
    """The certificate of what answers there is not one that we trust."""


class StoreTooOld(StoreError):
    """Redis is older than 7.0, or does not speak its protocol 3."""


class StoreKeysDiffer(StoreError):
    """Another living replica on this store seals with keys that this one does not have."""


class LinkDown(Exception):
    """The connection broke or could not be made; what was sent may have been executed or not."""
