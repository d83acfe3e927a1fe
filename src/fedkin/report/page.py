"""A self-contained HTML page of one or several runs. It loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedkin import __version__
from fedkin.report import read
from fedkin.report.page_data import page_data
from fedkin.results.folder import check_file

SCRIPTS = ("tools.js", "charts.js", "relation.js", "methods.js", "sections.js", "page.js")
MARK = b'<meta name="generator" content="fedkin'
EVALUATION = (
    "Every client is evaluated on its own test examples. They follow the client's own label distribution, and no "
    "method sees them. Personal is the model that the client uses. Received is the model that the server sent to it. "
    "The headline is the mean over all clients after the last round, never after the best round. Worst 10 % is the "
    "mean of the worst tenth of the clients. Standard deviations are over clients; those after ± are over seeds."
)


def render(data: dict[str, Any]) -> str:
    """Render the page. Its content security policy names our script by hash, so that no other script can run."""
    style = _asset("page.css")
    script = "\n".join(_asset(name) for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        f"connect-src '{'self' if data.get('live') else 'none'}'; base-uri 'none'; form-action 'none'"
    )
    # "<" is escaped, so that a name such as </script> cannot end the script element.
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
    # In one pass, because the inserted text may contain such a mark itself.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _asset("page.html"))


def build(
    paths: Sequence[str | Path], bibtex: str = "", load: Callable[[Path], read.Run] = read.load
) -> dict[str, Any]:
    """Build the page's data from these folders."""
    with read.understood(paths):
        data = page_data([load(folder) for folder in read.folders(paths)])
        return {**data, "answers": read.answers(paths), "evaluation": EVALUATION, "bibtex": bibtex}


def write(paths: Sequence[str | Path], out: str | Path | None = None, bibtex: str = "") -> Path:
    """Write the page, by default to report.html in the first folder. A page of fedkin's is replaced, no other file."""
    path = Path(out) if out is not None else Path(paths[0]) / "report.html"
    if out is not None:  # report.html in a folder of runs is fedkin's own name, also in pages of older versions
        check_file(path, MARK)
    content = render(build(paths, bibtex))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def labels(paths: Sequence[str | Path]) -> list[str]:
    """The methods in these folders, for their citations."""
    return list(dict.fromkeys(read.label(folder) for folder in read.folders(paths)))


def _asset(name: str) -> str:
    return (resources.files("fedkin.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
