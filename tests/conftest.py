"""What many tests use. Real data is read from FEDKIN_DATA where it is; nothing is ever downloaded."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from fedkin.data.federation import Federation, federate
from fedkin.models.network import Network, build
from fedkin.protocol import Client, Training

settings.register_profile(
    "fedkin",
    deadline=None,
    derandomize=True,  # a test fails because of a change, not because of the day
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("fedkin")

ARGUMENTS = [
    "--no-sandbox",  # Chromium refuses its sandbox to root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
LAST_RESORT = 580_000  # milliseconds, a little less than the limit of a test: a busy machine may be very slow


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where a test is repeated for all methods, named variants of a class that is tested are in the slow set."""
    from fedkin.methods import METHODS

    first: dict[str, str] = {}
    for name, entry in METHODS.items():
        first.setdefault(entry.target, name)
    variants = {name for name, entry in METHODS.items() if first[entry.target] != name}
    groups: dict[str, list[tuple[pytest.Item, str]]] = {}
    for item in items:
        call = getattr(item, "callspec", None)
        for value in call.params.values() if call is not None else ():
            if isinstance(value, str) and value in METHODS:
                groups.setdefault(item.nodeid.split("[")[0], []).append((item, value))
    for path, found in groups.items():
        if {name for _, name in found} >= set(first.values()) and "tests/conformance/test_methods.py" not in path:
            for item, name in found:
                if name in variants:
                    item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The cores are shared, and the numbers must not depend on how many there are."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits() -> Federation:
    return federate("digits", partition="dirichlet", clients=6, alpha=0.5, seed=1)


@pytest.fixture
def make_client(digits: Federation) -> Callable[..., Client]:
    """A client of the digits federation with a network of its own: make_client(module=..., momentum=0.9)."""

    def make(client: int = 0, *, module: torch.nn.Module | None = None, seed: int = 7, **training: Any) -> Client:
        from fedkin.models.mlp import mlp

        module = module or build(lambda: mlp(digits.shape, digits.classes), 3)
        return Client({}, digits.data(client), seed, Network(module, digits.example), Training(**training))

    return make


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[Any]]]:
    """`spawn(command, ...)`: a process that does not outlive the test."""
    started: list[subprocess.Popen[Any]] = []

    def spawn(command: list[Any], **options: Any) -> subprocess.Popen[Any]:
        started.append(subprocess.Popen(command, **options))
        return started[-1]

    yield spawn
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """`real_data("mnist/train-labels-idx1-ubyte.gz")`: the folder of real data, or the test is skipped."""

    def folder(*files: str) -> Path:
        if not os.environ.get("FEDKIN_DATA"):
            pytest.skip("FEDKIN_DATA is not set: it names the folder of the real data")
        root = Path(os.environ["FEDKIN_DATA"])
        absent = [name for name in files if not (root / name).exists()]
        if absent:
            pytest.skip(f"{root} has no {', '.join(absent)}")
        return root

    return folder


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
