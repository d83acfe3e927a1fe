"""The leaderboard as one self-contained, interactive HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

from fedkin.experiments.leaderboard import Board
from fedkin.results.folder import check_file


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Write the page for a folder that `fedkin bench` made; by default to leaderboard.html inside it."""
    found = json.loads((folder / "leaderboard.json").read_text())
    path = out or folder / "leaderboard.html"
    if out is not None:
        check_file(path, b"<title>fedkin leaderboard</title>")
    path.write_text(render(found), encoding="utf-8")
    return path


def render(found: dict[str, Any]) -> str:
    board = Board.from_json(found)
    data = {**found, "words": board.words(), "winner_table": board.winner_table()}
    script, style = _asset("leaderboard.js"), _asset("leaderboard.css")
    parts = {
        # only our own script and style: the policy names them by their hashes
        "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'",
        "style": style,
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "script": script,
    }
    page = _asset("leaderboard.html")
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text, 1)
    return page


def _asset(name: str) -> str:
    return (resources.files("fedkin.experiments") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
