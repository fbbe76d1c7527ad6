"""Private keys of clients: what a file can say wrong of them."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from gateway.config.references import import_object

SigningAlgorithm: TypeAlias = Literal["ES256", "ES384", "RS256", "RS384", "PS256", "EdDSA"]


def fault_of(key: str, algorithm: str) -> str:
    """Why nobody can sign by it; empty: somebody can. Who signs is found by name, as native servers are, and is loaded
    only where somebody has a key."""
    can_sign: Callable[[str, str], bool] = import_object("gateway.oauth.assertions:can_sign")
    return (
        "" if can_sign(key, algorithm) else f"is no private key in PEM, without a password, that signs by {algorithm}"
    )
