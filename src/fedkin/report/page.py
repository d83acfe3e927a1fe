"""One self-contained HTML page of a run or of several: nothing in it asks for anything outside."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedkin import __version__
from fedkin.report import read

SCRIPTS = ("tools.js", "charts.js", "relation.js", "methods.js", "sections.js", "page.js")
EVALUATION = (
    "Every client is measured on its own test rows, which follow its own label distribution and which no method sees. "
    "personal: the model that the method says this client uses. received: the model as sent to it. The headline is the "
    "mean over all clients after the last round, never the best round. Worst tenth: the mean of the worst tenth of the "
    "clients. Standard deviations are over clients, except after ±, where they are over seeds."
)


def render(data: dict[str, Any]) -> str:
    """The page of `page_data`. Only our own script can run in it: the policy names it by its hash."""
    style = _asset("page.css")
    script = "\n".join(_asset(name) for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        f"connect-src '{'self' if data.get('live') else 'none'}'; base-uri 'none'; form-action 'none'"
    )
    # A name such as </script> stays inside its string: "<" is written as an escape.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False)
    content = content.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    parts = {
        "policy": policy,
        "version": html.escape(__version__),
        "title": html.escape(data["title"]),
        "style": style,
        "data": content,
        "script": script,
    }
    # in one pass: what is put in may hold such a mark itself
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _asset("page.html"))


def build(paths: Sequence[str | Path], bibtex: str = "") -> dict[str, Any]:
    """The data of the page for these folders."""
    data = read.page_data([read.load(folder) for folder in read.folders(paths)])
    return {**data, "evaluation": EVALUATION, "bibtex": bibtex}


def write(paths: Sequence[str | Path], out: str | Path | None = None, bibtex: str = "") -> Path:
    """Write the page; by default as report.html in the first folder."""
    place = Path(out) if out is not None else Path(paths[0]) / "report.html"
    content = render(build(paths, bibtex))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content, encoding="utf-8")
    return place


def labels(paths: Sequence[str | Path]) -> list[str]:
    """Names of the methods in these folders, for their citations."""
    return list(dict.fromkeys(read.label(folder) for folder in read.folders(paths)))


def _asset(name: str) -> str:
    return (resources.files("fedkin.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
