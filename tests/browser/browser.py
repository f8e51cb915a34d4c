"""A page in Chromium, driven over the DevTools protocol.

    with Browser() as browser:
        browser.open(url)
        browser.wait_for("document.querySelector('h1')")
        browser.click("button.primary")
        assert browser.evaluate("document.title") == "delayd"

Expressions are JavaScript. A page may go to another one, or be drawn anew, at any time. So what
asks (`evaluate` and all that waits) is asked again of the page that comes, and what acts (`click`,
`enter`) finds its element and acts on it in one step.

What the page complains about (exceptions, errors on the console, what its Content-Security-Policy
has refused) is in `complaints`. A dialog of the page, such as an `alert` of an injected script, is
a complaint too.

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

from tests.rigs.waiting import until

CHROMIUM: Final = shutil.which("chromium")
NEEDS_CHROMIUM: Final = pytest.mark.skipif(
    CHROMIUM is None, reason="Debian's chromium is not installed"
)
PATIENCE_S: Final = 60.0
_EMPTY: Final = "about:blank"
_FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0", _EMPTY),
)
_PAUSE_S: Final = 0.05
_OVERTAKEN: Final = frozenset(
    (
        "Inspected target navigated or closed",
        "Execution context was destroyed.",
        "Cannot find default execution context",
    )
)
"""What is said of an expression whose page went away before it had an answer."""


class Overtaken(AssertionError):
    """The page went away before it had answered: whether it did what it was told is not known."""


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
        self._loaded: set[str] = set()
        self.complaints: list[str] = []
        self.forgiven: list[str] = []
        address = self._address()
        self._session = self._loop.run_until_complete(_session())
        self._socket = self._loop.run_until_complete(self._connect(address))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Page.setLifecycleEventsEnabled", enabled=True)

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

    def open(self, url: str, *texts: str) -> None:
        """Load a page, even if only what follows the # is new; wait until it shows these texts."""
        # A query that nothing reads makes it another page: to go over an empty one takes a process.
        load = f"?{next(self._numbers)}#"
        loader = self.send("Page.navigate", url=url.replace("#", load, 1))["loaderId"]
        self._loop.run_until_complete(asyncio.wait_for(self._until_loaded(loader), PATIENCE_S))
        for text in texts:
            self.shows(text)

    def leave(self) -> None:
        """Forget what the page has kept of its session, and go to an empty page."""
        # By the page's own hand: a browser that is told to go there starts a process for it.
        self.evaluate(f"sessionStorage.clear(), location.replace({json.dumps(_EMPTY)})")
        self.wait_for(f"location.href === {json.dumps(_EMPTY)}")

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401 (whatever it is)
        """Return what the expression is, which may be a promise.

        It asks: where its page goes away, it is asked again of the one that comes.
        """
        ends_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._evaluate_once(expression)
            except Overtaken:
                if time.monotonic() > ends_s:
                    raise
            time.sleep(_PAUSE_S)

    def wait_for(self, condition: str) -> None:
        """Wait until the expression is true; while it raises it is not."""
        expression = (
            f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"
        )
        until(
            lambda: self.evaluate(expression),
            PATIENCE_S,
            seen=lambda: f"{condition}\n{self.text()}",
        )

    def act(self, element: str, action: str) -> None:
        """Wait until there is this element, and do this to `it`, once."""
        done = False
        while not done:
            self.wait_for(element)
            # It may be drawn anew between the two.
            done = self._evaluate_once(f"((it) => it ? ({action}, true) : false)({element})")

    def text(self) -> str:
        """Return what the page shows."""
        return str(self.evaluate("document.body?.innerText"))

    def shows(self, text: str) -> None:
        """Wait until the page shows this text."""
        self.wait_for(f"document.body.innerText.includes({json.dumps(text)})")

    def click(self, selector: str, text: str = "", *, then: str = "") -> None:
        """Click on the first element of this selector, that has this text, and see what follows."""
        found = (
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".find((each) => each.textContent.includes({json.dumps(text)}))"
        )
        self.act(found, "it.click()")
        if then:
            self.shows(then)

    def enter(self, selector: str, text: str) -> None:
        """Write into a field, as if it was typed."""
        self.act(
            f"document.querySelector({json.dumps(selector)})",
            f"it.focus(), it.value = {json.dumps(text)},"
            " it.dispatchEvent(new Event('input', {bubbles: true}))",
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

    def forgive(self, *texts: str) -> None:
        """Let it complain of this until the test is over: it asks again while the test ends."""
        self.forgiven += texts

    def forget(self) -> None:
        """Begin anew: nothing was complained of, and nothing is forgiven."""
        self.complaints.clear()
        self.forgiven.clear()

    def unforgiven(self) -> list[str]:
        """Return what it has complained of, but for what is forgiven."""
        return [each for each in self.complaints if not any(map(each.__contains__, self.forgiven))]

    # --- The protocol ----------------------------------------------------------------------------

    def send(self, method: str, **arguments: object) -> dict[str, Any]:
        """Send a command; return its result."""
        return self._loop.run_until_complete(
            asyncio.wait_for(self._send(method, arguments), PATIENCE_S)
        )

    def _evaluate_once(self, expression: str) -> Any:  # noqa: ANN401 (whatever it is)
        told = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def _send(self, method: str, arguments: dict[str, object]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": arguments})
        while (told := await self._heard()).get("id") != number:
            pass
        if "error" in told and told["error"]["message"] in _OVERTAKEN:
            raise Overtaken(method, arguments)
        assert "error" not in told, (method, told["error"])
        return cast("dict[str, Any]", told["result"])

    async def _until_loaded(self, loader: str) -> None:
        while loader not in self._loaded:
            await self._heard()
        self._loaded.clear()

    async def _heard(self) -> dict[str, Any]:
        """Return the next message; what an event says is noted."""
        told = cast("dict[str, Any]", await self._socket.receive_json())
        await self._note(told.get("method", ""), told.get("params", {}))
        return told

    async def _note(self, event: str, said: dict[str, Any]) -> None:
        if event == "Page.lifecycleEvent" and said["name"] == "load":
            self._loaded.add(said["loaderId"])
        elif event == "Runtime.exceptionThrown":
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
