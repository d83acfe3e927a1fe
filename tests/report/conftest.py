"""Small real runs of the four systems and the baselines, and a browser, for all tests of the report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedkin

METHODS = [
    "local",
    "fedavg",
    "fedcedar,clusters=2",
    "pflic,clusters=2,restarts=1,stable_rounds=2",
    "pfedgat-v2",
    "dcpfl,tau=1,start_rounds=2,window=1,patience=1",
]
ARGUMENTS = [
    "--no-sandbox",  # Chromium refuses its sandbox to root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
LAST_RESORT = 580_000  # milliseconds, a little less than the limit of a test: a busy machine may be very slow


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six methods on digits turned four ways, so that hidden groups are known."""
    out = tmp_path_factory.mktemp("comparison")

    def fed(seed: int) -> fedkin.Federation:
        return fedkin.federate("digits", partition="rotated", clients=8, samples_per_client=40, seed=seed)

    fedkin.compare(METHODS, fed, rounds=8, lr=0.1, evaluate_every=3, out=out, save_models=False, engine="serial")
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. Not for the whole session: Playwright's event loop would run under other tests too."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    binary = next((found for name in names if (found := shutil.which(name))), None)
    if binary is None:
        pytest.skip("There is no Chromium: apt-get install chromium, or run `make browser` as root")
    playwright.expect.set_options(timeout=LAST_RESORT)
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=binary, args=ARGUMENTS, timeout=LAST_RESORT)
        yield made
        made.close()
