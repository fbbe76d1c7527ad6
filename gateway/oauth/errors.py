"""What goes wrong between the gateway and an authorization server."""


class OAuthError(Exception):
    """The reason is a word for metrics and logs, the message for operators and users: it holds nothing that a server
    has said but what is named there, short and printable, and no credential."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class AwayError(OAuthError):
    """The authorization server can't be reached, or has a fault of its own (5xx): what is known stays good."""


class GrantRefusedError(OAuthError):
    """The authorization server refused the grant for good (RFC 6749, section 5.2: `invalid_grant`)."""


class ClientRefusedError(OAuthError):
    """The authorization server does not know our client (any more): `invalid_client`."""


def shown(text: object, longest: int = 120) -> str:
    """As much of what another one has said as can do no harm in a log or on a page."""
    cleaned = "".join(character if character.isprintable() else " " for character in str(text))
    return cleaned if len(cleaned) <= longest else cleaned[: longest - 1] + "…"
