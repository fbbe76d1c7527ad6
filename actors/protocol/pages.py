"""Errors that send a user to a page (-32042; 2025-11-25, client/elicitation), and what stands for them where the client
can't be asked to open one.
"""

import msgspec
from msgspec import Raw, Struct

from actors.protocol import errors
from actors.protocol.errors import BROKEN
from actors.protocol.messages import Outcome
from actors.protocol.payload import dumps, mentions


class Page(Struct, frozen=True):
    """An address that the user must open, and why."""

    url: str
    message: str = ""


class _Pages(Struct, frozen=True):
    elicitations: list[Page] = []


class _SentAway(Struct):
    code: int
    message: str = ""
    data: _Pages = _Pages()


def sent_away(error: Raw) -> tuple[str, list[Page]] | None:
    """What an error -32042 says, and the pages that it sends the user to; None for any other error."""
    if not mentions(error, b"%d" % errors.URL_ELICITATION_REQUIRED):
        return None
    try:
        found = msgspec.json.decode(error, type=_SentAway)
    except BROKEN:
        try:
            plain = errors.parse_error_member(error)
        except ValueError:
            return None
        found = _SentAway(plain.code, plain.message)
    return (found.message, found.data.elicitations) if found.code == errors.URL_ELICITATION_REQUIRED else None


def in_words(for_model: bool, why: str, pages: list[Page]) -> Outcome:
    """For a client that can't be asked to open a page: the model that called a tool can tell its user, and anybody else
    finds the addresses in the error's data. `for_model` as in `tasks`."""
    lines = [f"{page.message}\n{page.url}" if page.message else page.url for page in pages]
    if for_model and lines:
        words = "\n\n".join([why or "The user must open this page in a browser first, then try again:", *lines])
        return True, errors.as_result(words)
    told = [{"url": page.url, "message": page.message} for page in pages]
    data = {"reason": "url_elicitation_required", **({"elicitations": told} if told else {})}
    return False, dumps({"code": errors.INTERNAL, "message": why, "data": data})
