"""Lists that come in pages."""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Final, Generic, TypeVar

from gateway.client.errors import InvalidAnswerError
from gateway.client.values import Wire, typed

W = TypeVar("W", bound=Wire)

PAGES: Final = 10_000
"""Of one list: a server that goes round in circles ends here."""


class Pages(Generic[W]):
    """A list. `await` it for all of its entries; `async for` fetches a page when it gets there."""

    def __init__(
        self,
        request: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]],
        method: str,
        member: str,
        kind: type[W],
    ) -> None:
        self._request = request
        self._method = method
        self._member = member
        self._kind = kind

    def __await__(self) -> Generator[Any, Any, list[W]]:
        return self._all().__await__()

    def __aiter__(self) -> AsyncIterator[W]:
        return _Walk(self)

    async def page(self, cursor: str | None = None) -> tuple[list[W], str | None]:
        """One page, and the cursor of the next; None at the end."""
        result = await self._request(self._method, {} if cursor is None else {"cursor": cursor})
        entries, following = result.get(self._member), result.get("nextCursor")
        if not isinstance(entries, list) or not isinstance(following, (str, type(None))):
            raise InvalidAnswerError(f"the answer to {self._method} is no page of a list")
        return [typed(self._kind, entry) for entry in entries], following

    async def _all(self) -> list[W]:
        return [entry async for entry in self]


class _Walk(Generic[W]):
    def __init__(self, pages: Pages[W]) -> None:
        self._pages = pages
        self._left: list[W] = []
        self._cursor: str | None = None
        self._count = 0

    def __aiter__(self) -> "_Walk[W]":
        return self

    async def __anext__(self) -> W:
        while not self._left:
            if self._count and self._cursor is None:
                raise StopAsyncIteration
            if self._count == PAGES:
                raise InvalidAnswerError(f"more than {PAGES} pages")
            self._left, self._cursor = await self._pages.page(self._cursor)
            self._left.reverse()
            self._count += 1
        return self._left.pop()
