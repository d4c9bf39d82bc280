"""A real Chromium without a window, driven by its own protocol (chromedevtools.github.io/devtools-protocol)."""

from __future__ import annotations

import base64
import itertools
import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from edgespec_lab.rig import Processes
from tests.support.programs import require

KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27, "End": 35, "Home": 36}
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
)  # fmt: skip


class Browser:
    """One page. Expressions are JavaScript; what they return comes back as JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.said: list[str] = []
        """Errors of the page: exceptions, and what its policy refused."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """One command and its result."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, (method, message)
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            self.said.append(json.dumps(message["params"]["exceptionDetails"])[:500])
        elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["source"] in (
            "security",
            "other",
        ):
            self.said.append(message["params"]["entry"]["text"])

    def js(self, expression: str) -> Any:
        """The value of an expression; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str, within_s: float = 30.0) -> Any:
        """Until it is true; returns it."""
        deadline = time.monotonic() + within_s
        while not (found := self.js(expression)):
            assert time.monotonic() < deadline, (
                f"{expression} stayed {found}: {self.said} {self.js('document.body.innerText')}"
            )
            time.sleep(0.05)
        return found

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def type(self, selector: str, text: str, *, enter: bool = True) -> None:
        self.js(f"document.querySelector({selector!r}).focus()")
        self.call("Input.insertText", text=text)
        if enter:
            self.js(f"document.querySelector({selector!r}).form.requestSubmit()")

    def key(self, name: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=KEYS[name])

    def point(self, selector: str, *, click: bool = False) -> None:
        """Moves the pointer over an element; `click` presses it too."""
        box = self.js(
            f"(e => (e.scrollIntoView({{block: 'center'}}), e.getClientRects()[0].toJSON()))"
            f"(document.querySelector({selector!r}))"
        )
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def look(self, width: int = 1280, height: int = 1000, *, dark: bool = False, phone: bool = False) -> None:
        """The size of the page, and the scheme of its colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """A screenshot as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Starts it; ends it at the end of the block."""
    program = require("chromium")
    with Processes(folder, environment={"HOME": str(folder)}) as processes:
        profile = folder / "profile"
        processes.start("chromium", [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"])
        file = profile / "DevToolsActivePort"
        processes.wait_for("chromium", lambda: file.exists() and "\n" in file.read_text(), 60)
        port = file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as response:
            page = next(one for one in json.load(response) if one["type"] == "page")
        with connect(page["webSocketDebuggerUrl"], max_size=None, compression=None, ping_interval=None) as socket:
            yield Browser(socket)
