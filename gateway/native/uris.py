"""URI templates: `{name}` stands for one path segment, `{+name}` for anything, slashes too (RFC 6570, levels 1-2)."""

import re
from dataclasses import dataclass
from urllib.parse import unquote

_EXPRESSION = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class UriTemplate:
    """A template and the expression that recognises its URIs."""

    text: str
    names: tuple[str, ...]
    pattern: re.Pattern[str]

    def match(self, uri: str) -> dict[str, str] | None:
        """The values in this URI, decoded; None if it is not one of the template's."""
        found = self.pattern.fullmatch(uri)
        return {name: unquote(value) for name, value in found.groupdict().items()} if found else None


def parse(text: str) -> UriTemplate:
    """ValueError for a template without expressions, with one name twice, or with other expressions."""
    pattern, names, end = "", [], 0
    for expression in _EXPRESSION.finditer(text):
        plus, name = expression.groups()
        names.append(name)
        pattern += re.escape(text[end : expression.start()]) + (f"(?P<{name}>.+)" if plus else f"(?P<{name}>[^/?#]+)")
        end = expression.end()
    rest = text[end:]
    if not names or len(set(names)) < len(names) or set("{}") & set(_EXPRESSION.sub("", text)):
        raise ValueError(f"{text!r}: expected each of its variables once, as {{name}} or {{+name}}")
    return UriTemplate(text, tuple(names), re.compile(pattern + re.escape(rest), re.DOTALL))
