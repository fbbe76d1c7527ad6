"""A headless Chromium at the width of a phone, which a test drives by the DevTools protocol."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from tests.support.patience import PATIENCE

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
MISSING = "Chromium is not installed (Debian: apt-get install chromium-headless-shell)"
WIDTH, HEIGHT = 360, 640
AXE = Path(__file__).parents[1] / "node" / "node_modules" / "axe-core" / "axe.min.js"


def installed() -> str | None:
    """The program, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Page:
    """The one that is open."""

    def __init__(self, socket: WebSocketConnection, session: str) -> None:
        self._socket = socket
        self._session = session
        self._ids = count(100)

    async def do(self, method: str, **params: Any) -> Any:
        """A command of the protocol, and its result."""
        return await ask(self._socket, next(self._ids), method, params, self._session)

    async def run(self, script: str) -> Any:
        """What an expression is worth in the page; a promise is waited for."""
        found = await self.do("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def open(self, url: str) -> None:
        await self.do("Page.navigate", url=url)

    async def shows(self, words: str) -> str:
        """Waits until this stands on a whole page → all that stands there."""
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    text = await self.run("document.readyState === 'complete' ? document.body.innerText : ''")
                except AssertionError:
                    text = ""  # it is just becoming another page
                if words in (text or ""):
                    return str(text)
                await trio.sleep(0.05)

    async def press(self, words: str) -> None:
        """The button with these words, as a finger would: it must be in sight and large enough."""
        find = f"[...document.querySelectorAll('button')].find(b => b.innerText === {json.dumps(words)})"
        rect = "({x, y, width, height}) => ({x, y, width, height})"
        await self.run(f"{find}.scrollIntoView({{block: 'center'}})")
        box = await self.run(f"({rect})({find}.getBoundingClientRect())")
        assert box["height"] >= 44, "WCAG 2.2, 2.5.5: a finger needs room"
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= WIDTH
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            await self.do("Input.dispatchMouseEvent", type=kind, **at)

    async def type(self, id: str, text: str) -> None:
        await self.run(f"document.getElementById({json.dumps(id)}).focus()")
        await self.do("Input.insertText", text=text)

    async def faults(self) -> list[Any]:
        """What axe-core finds wrong, and whether the page is wider than the phone."""
        await self.run(AXE.read_text() + "; true")
        found = await self.run("axe.run().then(r => r.violations.map(v => [v.id, v.help, v.nodes.map(n => n.html)]))")
        width = await self.run("document.documentElement.scrollWidth")
        return [*found, *([f"it is {width} pixels wide"] if width > WIDTH else [])]


async def ask(socket: WebSocketConnection, id: int, method: str, params: Any, session: str | None = None) -> Any:
    await socket.send_message(
        json.dumps({"id": id, "method": method, "params": params} | ({"sessionId": session} if session else {}))
    )
    with trio.fail_after(PATIENCE):
        while (message := json.loads(await socket.get_message())).get("id") != id:
            pass
    assert "error" not in message, message
    return message["result"]


@asynccontextmanager
async def open_page(program: str, folder: Path) -> AsyncIterator[Page]:
    """A page of a browser that keeps its things in this folder, and ends with the block."""
    words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    words += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            lambda task_status: trio.run_process(
                words,
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                check=False,
                start_new_session=True,
                task_status=task_status,
            )
        )
        try:
            port = folder / "DevToolsActivePort"
            with trio.fail_after(PATIENCE):
                while not port.exists() or len(port.read_text().splitlines()) < 2:
                    await trio.sleep(0.05)
            number, path = port.read_text().splitlines()[:2]
            async with open_websocket_url(f"ws://127.0.0.1:{number}{path}", max_message_size=1 << 24) as socket:
                targets = (await ask(socket, 1, "Target.getTargets", {}))["targetInfos"]
                target = next(found["targetId"] for found in targets if found["type"] == "page")
                attached = await ask(socket, 2, "Target.attachToTarget", {"targetId": target, "flatten": True})
                page = Page(socket, attached["sessionId"])
                phone = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 2, "mobile": True}
                await page.do("Emulation.setDeviceMetricsOverride", **phone)
                yield page
        finally:
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)  # the program may be a script that waits for the browser
            nursery.cancel_scope.cancel()
