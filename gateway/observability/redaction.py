"""Keeps credentials and session ids out of what is logged, by key, by shape, and by the values themselves."""

import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

HIDDEN = "[redacted]"

MIN_SECRET = 8
"""Shorter credentials are not looked for in texts: they would blot out ordinary words."""

FOREIGN = 1024
"""Characters of a text in an argument in which a name may say that a credential follows."""

_KEYS = re.compile(r"authorization|cookie|token|secret|passw|api[-_]?key|credential|session[-_]?id", re.IGNORECASE)
_SHAPES = (
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"(?<=://)[^/\s@]+(?=@)"), HIDDEN),  # a name alone may be a token
    (re.compile(r"([?&][\w.%+\[\]-]{1,64}=)[^&#\s\"'<>]+"), rf"\1{HIDDEN}"),  # the query of a URL
    # A JSON Web Token. Each run of letters is looked at once: whoever sends a long one has nobody wait for it.
    (re.compile(r"(?<![\w-])(?=[\w-]+\.[\w-]+\.)([\w-]*?)\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), rf"\1{HIDDEN}"),
    (re.compile(r"\b(?:sk|pk|rk|ghp|gho|ghs|ghu|glpat|github_pat|xox[a-z]|npm|AKIA|AIza)[-_]?[\w-]{16,}"), HIDDEN),
    (re.compile(r"(mcp-session-id\W{1,4})[\x21-\x7e]+", re.IGNORECASE), rf"\1{HIDDEN}"),
)
_WORDS = r"token|secret|passw(?:or)?d|passphrase|api[-_]?key|access[-_]?key|credential|cookie"
_NAME = rf"(?<![\w-])[\w-]{{0,40}}?(?:{_WORDS})[\w-]{{0,40}}"
_FOREIGN = (
    (re.compile(rf"(?i)({_NAME}[\"']?\s?[=:]\s?[\"']?)[^\s\"',;]+"), rf"\1{HIDDEN}"),  # TOKEN=…, "api_key": "…"
    (
        re.compile(rf"(?i)((?<![\w-])--?(?:[\w-]{{0,40}}?(?:{_WORDS}))[\w-]{{0,40}}\s)[^\s\"']+"),
        rf"\1{HIDDEN}",
    ),  # --api-key …
)
"""In texts that others wrote, and that somebody else than an operator may read: rather too much than too little."""


class Redaction:
    """A step of the log's pipeline. `secrets` are values that must not appear anywhere."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({secret for secret in secrets if len(secret) >= MIN_SECRET}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
        return {key: self._value(key, value, self.text) for key, value in event.items()}

    def text(self, text: str) -> str:
        """The text with everything that looks like a credential hidden."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for pattern, replacement in _SHAPES:
            text = pattern.sub(replacement, text)
        return text

    def foreign(self, text: str) -> str:
        """The text of somebody else, such as a line of a server's standard error, with what may be a credential
        hidden."""
        text = self.text(text)
        for pattern, replacement in _FOREIGN:
            text = pattern.sub(replacement, text)
        return text

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a call, which somebody else wrote: a command line may have a password in it, and a number be one."""
        return {name: self._value(name, value, self._argument, bool | None) for name, value in given.items()}

    def _argument(self, text: str) -> str:
        # Credentials may be long, and so is what is looked through for them; the names of others stand before them.
        return self.foreign(self.text(text)[:FOREIGN])

    def _value(self, key: str, value: Any, text: Callable[[str], str], plain: Any = bool | int | float | None) -> Any:
        # A count of tokens, or a flag that a token is there, gives nothing away.
        if _KEYS.search(key) and not isinstance(value, plain):
            return HIDDEN
        if isinstance(value, str):
            return text(value)
        if isinstance(value, bytes):
            return text(value.decode("utf-8", "replace"))
        if isinstance(value, Mapping):
            return {str(name): self._value(str(name), inner, text, plain) for name, inner in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value("", inner, text, plain) for inner in value]
        return value
