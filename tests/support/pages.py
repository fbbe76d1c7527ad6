"""Pages of the gateway, and of authorization servers, as a browser without scripts sees them."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urljoin

import httpx2


class Pages:
    """Of the site at `base`, and of those that it leads to; `http` has their cookies."""

    def __init__(self, http: httpx2.AsyncClient, base: str) -> None:
        self._http, self._base = http, base
        self.text = self.url = ""

    async def open(self, url: str) -> None:
        """A page, by way of all that leads on by itself."""
        for _ in range(12):
            answer = await self._http.get(url)
            if answer.is_redirect:
                url = str(answer.next_request.url)  # type: ignore[union-attr]
                continue
            self.text, self.url = answer.text, url
            onward = re.search(r'content="0;url=([^"]*)"', self.text)
            if onward is None:
                return
            url = urljoin(url, unescape(onward[1]))
        raise AssertionError(f"it never ends: {self.text}")

    async def press(self, words: str, **more: str) -> None:
        """A button of the page."""
        forms = re.findall(
            r'<form method="post" action="([^"]*)">(.*?)<button[^>]*>([^<]*)</button>', self.text, re.DOTALL
        )
        found = [(a, f) for a, f, label in forms if label == words]
        assert found, f"no button {words!r}: {self.text}"
        action, fields = found[0]
        hidden = dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', fields))
        url = urljoin(self._base, action)
        answer = await self._http.post(url, data={n: unescape(v) for n, v in hidden.items()} | more)
        self.text = answer.text
        onward = re.search(r'content="0;url=([^"]*)"', self.text)
        if onward is not None:
            await self.open(urljoin(url, unescape(onward[1])))

    async def fill(self, **fields: str) -> None:
        """The form of a page of somebody else's, with all that is hidden in it."""
        found = re.search(r"<form[^>]*>", self.text)
        assert found is not None, self.text
        action = re.search(r'action="([^"]*)"', found[0])
        answer = await self._http.post(
            urljoin(self.url, unescape(action[1])) if action is not None else self.url, data=fields
        )
        if answer.is_redirect:
            await self.open(str(answer.next_request.url))  # type: ignore[union-attr]
        else:
            self.text = answer.text
