"""The documentation builds into a site without warnings, and its pages load nothing from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedkin

ROOT = Path(__file__).parent.parent


def test_every_public_name_has_a_reference():
    text = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    named = set(re.findall(r"^::: fedkin\.(\w+)$", text, re.MULTILINE))
    assert set(fedkin.__all__) <= named
    for target in re.findall(r"^::: (fedkin\.\S+)$", text, re.MULTILINE):
        module, _, name = target.rpartition(".")
        found = fedkin if module == "fedkin" else __import__(module, fromlist=[name])
        assert getattr(found, name) is not None


@pytest.mark.slow
@pytest.mark.processes
def test_the_site_is_built_without_warnings_and_needs_no_network(tmp_path):
    pytest.importorskip("mkdocs", reason="MkDocs is not installed: pip install 'fedkin[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 60
    loaded = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)="((?:https?:)?//[^"]+)"')
    assert {url for page in pages for url in loaded.findall(page.read_text())} == set()
    assert "api.github.com" not in (tmp_path / "index.html").read_text()
    assert not re.search(r'data-md-component="source"', (tmp_path / "index.html").read_text())
    assert (tmp_path / "search" / "search_index.js").exists()
