"""What MkDocs does beyond its settings: expand the navigation, add generated pages, and mend links out of docs/.

The pages are also read on GitHub, so their links are paths in the repository. Those that leave docs/ become links to
the repository; those of CHANGELOG.md, which becomes a page, lose their docs/.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put all pages that match in the place of an entry with a *."""
    named = set(_paths(config.nav))
    config.nav = _expanded(config.nav, Path(config.docs_dir), named)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other things."""
    changelog = LINK.sub(r"../\1", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")).replace("](../docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changelog))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def mended(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match[1]))
        inside = path.startswith("docs/") and files.get_file_from_path(path.removeprefix("docs/")) is not None
        return match[1] if inside or not (ROOT / path).exists() else f"{config.extra['source']}/blob/main/{path}"

    markdown = LINK.sub(mended, markdown)
    return markdown.replace("<!-- methods -->", _methods()) if "<!-- methods -->" in markdown else markdown


def _methods() -> str:
    """Every built-in method with its page."""
    from fedkin.methods import METHODS

    pages = {path.stem.replace("-", "_"): path.name for path in (ROOT / "docs" / "methods").glob("*.md")}
    lines = ["| method | what it does | paper | travels | stays at the client |", "|---|---|---|---|---|"]
    for name, entry in METHODS.items():
        if entry.target.startswith("fedkin."):
            kind, page = entry.load(), pages[entry.target.split(":")[0].split(".")[-1]]
            lines.append(f"| [{name}]({page}) | {entry.summary} | {kind.paper} | {kind.travels} | {kind.stays} |")
    return "\n".join(lines)


def _paths(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [path for item in (nav.values() if isinstance(nav, dict) else nav) for path in _paths(item)]


def _expanded(nav: Any, docs: Path, named: set[str]) -> Any:
    if isinstance(nav, dict):
        return {name: _expanded(item, docs, named) for name, item in nav.items()}
    if isinstance(nav, str):
        return _matching(nav, docs, named) if "*" in nav else nav
    out = []
    for item in nav:
        if isinstance(item, str) and "*" in item:
            out += _matching(item, docs, named)
        else:
            out.append(_expanded(item, docs, named))
    return out


def _matching(pattern: str, docs: Path, named: set[str]) -> list[str]:
    found = sorted({path.relative_to(docs).as_posix() for path in docs.glob(pattern)} - named)
    named.update(found)
    return found
