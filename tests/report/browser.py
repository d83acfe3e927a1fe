"""Debian's chromium, headless, driven by the DevTools protocol over a pair of pipes: no driver, no dependency."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

BINARY = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


class Browser:
    def __init__(self) -> None:
        assert BINARY is not None
        self._folder = tempfile.TemporaryDirectory(prefix="fedkin-browser-", ignore_cleanup_errors=True)
        to_browser, our_write = os.pipe()
        our_read, from_browser = os.pipe()

        def connect() -> None:  # chromium reads from descriptor 3 and writes to 4
            a, b = os.dup(to_browser), os.dup(from_browser)
            os.dup2(a, 3)
            os.dup2(b, 4)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        flags = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars"]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
        flags += ["--no-sandbox"] if os.getuid() == 0 else []  # chromium refuses its sandbox to root
        self._process = subprocess.Popen(
            [BINARY, *flags, f"--user-data-dir={self._folder.name}", "about:blank"],
            preexec_fn=connect, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._write, self._read = our_write, our_read
        self._buffer = b""
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        try:
            self.call("Browser.close")
        except (OSError, EOFError, TimeoutError):
            self._process.kill()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            answer = self._next(deadline - time.monotonic())
            if answer is None:
                continue
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)
        raise TimeoutError(f"chromium did not answer {method} in two minutes")

    def _next(self, wait: float) -> dict[str, Any] | None:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, wait))[0]:
                return None
            part = os.read(self._read, 1 << 20)
            if not part:
                raise EOFError("chromium has gone")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def drain(self) -> None:
        while (event := self._next(0.05)) is not None:
            self.events.append(event)

    def open(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        return Page(self, address, width, height, dark)


class Page:
    """One tab, with everything it logged and asked for."""

    def __init__(self, browser: Browser, address: str, width: int, height: int, dark: bool) -> None:
        self._browser, self._from = browser, 0
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ])  # fmt: skip
        self.resize(width, height)
        self.call("Performance.enable", timeDomain="threadTicks")
        begin = time.perf_counter()
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")
        self.seconds = time.perf_counter() - begin

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", code))
        return answer["result"].get("value")

    def wait(self, code: str, seconds: float = 120) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := self.run(code):
                return value
            time.sleep(0.05)
        raise TimeoutError(f"not so within {seconds} s: {code}")

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the page's main thread so far, however busy the machine is."""
        metrics = {m["name"]: m["value"] for m in self.call("Performance.getMetrics")["metrics"]}
        return float(metrics["TaskDuration"])

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def center(self, selector: str) -> tuple[float, float]:
        """Scroll an element into view; the place of its middle."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        time.sleep(0.15)  # the scroll event hides the tooltip
        return box[0], box[1]

    def _events(self, *methods: str) -> list[dict[str, Any]]:
        self._browser.drain()
        events = self._browser.events[self._from :]
        return [e["params"] for e in events if e.get("sessionId") == self._session and e["method"] in methods]

    def forget(self) -> None:
        """What was logged and asked for so far."""
        self._browser.drain()
        self._from = len(self._browser.events)

    @property
    def complaints(self) -> list[str]:
        """Console errors and warnings, uncaught exceptions, refused requests."""
        out = [
            str(e["entry"]["text"])
            for e in self._events("Log.entryAdded")
            if e["entry"]["level"] in ("error", "warning")
        ]
        out += [str(e["exceptionDetails"]) for e in self._events("Runtime.exceptionThrown")]
        out += [
            str(e["args"])
            for e in self._events("Runtime.consoleAPICalled")
            if e["type"] in ("error", "warning", "assert")
        ]
        return out

    @property
    def requests(self) -> list[str]:
        return [str(e["request"]["url"]) for e in self._events("Network.requestWillBeSent")]

    def screenshot(self, path: Path, selector: str | None = None) -> None:
        options: dict[str, Any] = {"captureBeyondViewport": True}
        if selector is not None:
            box = self.run(
                f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                " return [b.left + scrollX, b.top + scrollY, b.width, b.height]; })()"
            )
            options["clip"] = dict(zip(("x", "y", "width", "height"), box), scale=1)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **options)["data"]))
