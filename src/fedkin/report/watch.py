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
from fedkin.report.gathered import Gathered
from fedkin.results import checksums
from fedkin.results.history import Tail

PORT = 8642
QUICK = 0.5  # seconds: data that is rebuilt this fast is never stale
PATIENCE = 4
SLICE = 50_000  # records of a history that are read for one answer


class Reading:
    """Reads one run as far as it has come, a slice at a time and each record once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._start_over(b"")

    def _start_over(self, config: bytes) -> None:
        self._config = config
        self._gathered = Gathered()
        self.tail = Tail(self._folder / "history.jsonl")

    def run(self) -> read.Run:
        config = (self._folder / "config.json").read_bytes()
        if config != self._config or not self.tail.goes_on():  # another run has been started in this folder
            self._start_over(config)
            checksums.verify(self._folder, "history.jsonl")
        run = read.Run(self._folder, read.config(self._folder), self._gathered)
        try:
            for record in self.tail.read(SLICE):
                self._gathered.take(record)
        except BaseException:
            self._start_over(b"")  # a record may have been taken in part
            raise
        return run


class Feed:
    """The data of the folders. It is rebuilt only if a file has changed.

    A long run is read in slices, so that every request is answered soon: the data is then that of the first rounds,
    with `reading`, the part of the history that has been read. Requests that come while the data is being rebuilt, or
    before `PATIENCE` times as long as that took have passed, are given what is known.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        cite: Callable[[Sequence[str]], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.paths, self._cite, self._clock = [Path(p) for p in paths], cite, clock
        self._lock = threading.Lock()
        self._readings: dict[Path, Reading] = {}
        self._known: tuple[str, dict[str, Any]] | None = None
        self._next = 0.0  # when the data may be rebuilt

    def now(self) -> dict[str, Any]:
        """The data. Raises NoRun while there is no run."""
        version = self._version()
        known = self._known
        if known is not None and "reading" not in known[1] and (known[0] == version or self._clock() < self._next):
            return known[1]
        if not self._lock.acquire(blocking=known is None):
            assert known is not None
            return known[1]  # another request is rebuilding it
        try:
            return self._rebuilt(version)
        finally:
            self._lock.release()

    def _rebuilt(self, version: str) -> dict[str, Any]:
        if self._known is not None and self._known[0] == version and "reading" not in self._known[1]:
            return self._known[1]  # another request has done it meanwhile
        start = self._clock()
        before, self._readings = self._readings, {}

        def load(folder: Path) -> read.Run:
            self._readings[folder] = before.get(folder) or Reading(folder)
            return self._readings[folder].run()

        data = page.build(self.paths, self._cite(page.labels(self.paths)), load)
        tails = [reading.tail for reading in self._readings.values()]
        part = sum(tail.part_read for tail in tails) / len(tails)
        if not all(tail.caught_up for tail in tails):
            data["reading"] = part
        self._known = (version, {**data, "live": True, "version": f"{version}-{part}"})
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
