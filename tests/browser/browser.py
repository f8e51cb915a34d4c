"""A page in Chromium, driven over the DevTools protocol.

    with Browser() as browser:
        browser.open(url)
        browser.wait_for("document.querySelector('h1')")
        browser.click("button.primary")
        assert browser.evaluate("document.title") == "delayd"

Expressions are JavaScript. What the page complains about (exceptions, errors on the console, what
its Content-Security-Policy has refused) is in `complaints`. A dialog of the page, such as an
`alert` of an injected script, is a complaint too.

https://chromedevtools.github.io/devtools-protocol/
"""

import asyncio
import base64
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, cast

import aiohttp
import pytest

CHROMIUM: Final = shutil.which("chromium")
NEEDS_CHROMIUM: Final = pytest.mark.skipif(
    CHROMIUM is None, reason="Debian's chromium is not installed"
)
PATIENCE_S: Final = 60.0
_FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0", "about:blank"),
)


class Browser:
    """One browser with one page."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._folder = tempfile.mkdtemp()
        self._process = subprocess.Popen(
            [CHROMIUM, f"--user-data-dir={self._folder}", *_FLAGS],
            stderr=subprocess.PIPE,
            text=True,
        )
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        address = self._address()
        self._session = self._loop.run_until_complete(_session())
        self._socket = self._loop.run_until_complete(self._connect(address))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.run_until_complete(self._socket.close())
        self._loop.run_until_complete(self._session.close())
        self._loop.close()
        self._process.terminate()
        self._process.wait()
        cast("IO[str]", self._process.stderr).close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- What a test does ------------------------------------------------------------------------

    def open(self, url: str) -> None:
        """Load a page, even if only what follows the # is new."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401 (whatever it is)
        """Return what the expression is, which may be a promise."""
        told = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until the expression is true; while it raises it is not."""
        ends_s = time.monotonic() + PATIENCE_S
        expression = (
            f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"
        )
        while not self.evaluate(expression):
            assert time.monotonic() < ends_s, f"{condition} did not come true\n{self.text()}"
            time.sleep(0.05)

    def text(self) -> str:
        """Return what the page shows."""
        return str(self.evaluate("document.body?.innerText"))

    def shows(self, text: str) -> None:
        """Wait until the page shows this text."""
        self.wait_for(f"document.body.innerText.includes({json.dumps(text)})")

    def click(self, selector: str, text: str = "") -> None:
        """Click on the first element of this selector, that has this text."""
        found = (
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".find((each) => each.textContent.includes({json.dumps(text)}))"
        )
        self.wait_for(found)
        self.evaluate(f"{found}.click()")

    def enter(self, selector: str, text: str) -> None:
        """Write into a field, as if it was typed."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.wait_for(place)
        self.evaluate(
            f"{place}.focus(), {place}.value = {json.dumps(text)},"
            f" {place}.dispatchEvent(new Event('input', {{bubbles: true}}))"
        )

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Have a window of that size, in the light or the dark."""
        self.send(
            *("Emulation.setDeviceMetricsOverride",),
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def take_picture(self, path: Path) -> None:
        """Write what the window shows into a PNG file."""
        told = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(told["data"]))

    # --- The protocol ----------------------------------------------------------------------------

    def send(self, method: str, **arguments: object) -> dict[str, Any]:
        """Send a command; return its result."""
        return self._loop.run_until_complete(
            asyncio.wait_for(self._send(method, arguments), PATIENCE_S)
        )

    async def _send(self, method: str, arguments: dict[str, object]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": arguments})
        while True:
            told = await self._socket.receive_json()
            if told.get("id") == number:
                assert "error" not in told, (method, told["error"])
                return cast("dict[str, Any]", told["result"])
            await self._note(told.get("method", ""), told.get("params", {}))

    async def _note(self, event: str, said: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(str(said["exceptionDetails"]))
        elif event == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.complaints.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif event == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog: {said['message']}")
            number = next(self._numbers)
            closing = {"id": number, "method": "Page.handleJavaScriptDialog"}
            await self._socket.send_json({**closing, "params": {"accept": True}})

    def _address(self) -> str:
        """Return where the browser itself says that it can be reached."""
        for line in cast("IO[str]", self._process.stderr):
            if found := re.search(r"ws://([^/]*)/", line):
                return found[1]
        raise AssertionError("chromium did not start")

    async def _connect(self, address: str) -> aiohttp.ClientWebSocketResponse:
        async with self._session.get(f"http://{address}/json/list") as response:
            pages = await response.json()
        (url,) = (page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        return await self._session.ws_connect(url, max_msg_size=0)


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession()
