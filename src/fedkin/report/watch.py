"""`fedkin watch`: serve the page of a run while it is running, to this machine only.

The server reads the run's folder and writes nothing. The page keeps asking for new data, even if the run has ended
or the server has stopped: either may be started again.
"""

from __future__ import annotations

import hashlib
import html
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedkin.report import page, read

PORT = 8642
QUICK = 0.5  # seconds: data that is read this fast is never stale
PATIENCE = 4


class Feed:
    """The data of the folders. It is rebuilt only if a file has changed.

    Reading a long run takes seconds. So that every request is answered at once, the data may then be a little old: it
    is rebuilt by one request at a time, and not again before `PATIENCE` times as long as it took have passed.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        cite: Callable[[Sequence[str]], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.paths, self._cite, self._clock = [Path(p) for p in paths], cite, clock
        self._lock = threading.Lock()
        self._known: tuple[str, dict[str, Any]] | None = None
        self._next = 0.0  # when the data may be rebuilt

    def now(self) -> dict[str, Any]:
        """The data. Raises NoRun while there is no run."""
        version = self._version()
        known = self._known
        if known is not None and (known[0] == version or self._clock() < self._next):
            return known[1]
        if not self._lock.acquire(blocking=known is None):
            assert known is not None
            return known[1]  # another request is rebuilding it
        try:
            return self._rebuilt(version)
        finally:
            self._lock.release()

    def _rebuilt(self, version: str) -> dict[str, Any]:
        if self._known is None or self._known[0] != version:
            start = self._clock()
            data = page.build(self.paths, self._cite(page.labels(self.paths)))
            self._known = (version, {**data, "live": True, "version": version})
            took = self._clock() - start
            self._next = self._clock() + (PATIENCE * took if took > QUICK else 0.0)
        return self._known[1]

    def _version(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        try:
            for folder in read.folders(self.paths):
                for name in ("config.json", "history.jsonl"):
                    stat = (folder / name).stat()
                    digest.update(f"{folder}/{name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}|".encode())
        except FileNotFoundError as error:  # the run has not begun, or is being started over
            raise read.NoRun(str(error)) from None
        return digest.hexdigest()


class Handler(BaseHTTPRequestHandler):
    feed: Feed

    def do_GET(self) -> None:
        try:
            answer = self._found()
        except FileNotFoundError:  # the run has not begun, or is being started over
            answer = 204, "", ""
        except (OSError, ValueError, KeyError) as error:  # a file is being replaced; the page will ask again
            answer = 503, "text/plain", f"{type(error).__name__}: {error}"
        with suppress(ConnectionError):  # the page was closed
            self._answer(*answer)

    def _found(self) -> tuple[int, str, str]:
        # A website could point its own name at this address (DNS rebinding) to read the data.
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in ("127.0.0.1", "localhost", "::1"):
            return 403, "text/plain", "This server only answers requests to localhost."
        address = urlsplit(self.path)
        if address.path == "/":
            return 200, "text/html", self._page()
        if address.path != "/data.json":
            return 404, "text/plain", f"There is nothing at {address.path}."
        data = self.feed.now()
        if parse_qs(address.query).get("since") == [data["version"]]:
            return 204, "", ""
        return 200, "application/json", json.dumps(data, separators=(",", ":"), allow_nan=False)

    def _page(self) -> str:
        try:
            return page.render(self.feed.now())
        except read.NoRun:
            where = html.escape(", ".join(map(str, self.feed.paths)))
            return (
                '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
                f'<link rel="icon" href="data:,"><title>fedkin watch</title><p>No run in {where} yet. This page will '
                "show it after its first round."
            )

    def _answer(self, code: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(code)
        if code != 204:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if code != 204:
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Do not log: the page sends a request every second."""


def server(
    paths: Sequence[str | Path], port: int = PORT, cite: Callable[[Sequence[str]], str] = lambda names: ""
) -> ThreadingHTTPServer:
    """A server on the loopback interface; run it with `serve_forever()`. If the port is taken, it uses a free one."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port={port} must lie in [0, 65535]; 0 uses a free one.")
    handler = type("Handler", (Handler,), {"feed": Feed(paths, cite)})
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError:
        return ThreadingHTTPServer(("127.0.0.1", 0), handler)
