"""The import rule of the design, read from the sources; and `import fedkin` does not wait for torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedkin
from fedkin.data import DATASETS
from fedkin.methods import METHODS
from fedkin.models import MODELS
from fedkin.registry import Entry, load_path, lookup

SOURCE = Path(fedkin.__file__).parent


def modules(folder: str) -> list[Path]:
    return sorted((SOURCE / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    """Every module of ours that is imported, as a full name; `from fedkin import x` counts as fedkin.x."""
    tree = ast.parse(path.read_text())
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    package = name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
    for node in ast.walk(tree):
        if top_level and id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(package[: len(package) - node.level + 1] + ([base] if base else []))
            found = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in found if name.split(".")[0] == "fedkin")


def below(name: str, *packages: str) -> bool:
    return any(name == p or name.startswith(f"{p}.") for p in packages)


@pytest.mark.parametrize("path", modules("maths"), ids=lambda p: p.stem)
def test_maths_imports_nothing_of_ours_but_maths(path):
    assert [n for n in imports(path) if not below(n, "fedkin.maths")] == []


@pytest.mark.parametrize("path", modules("methods"), ids=lambda p: p.stem)
def test_methods_never_import_the_engine(path):
    assert [
        n
        for n in imports(path)
        if below(n, "fedkin.engine", "fedkin.cli", "fedkin.deploy", "fedkin.results", "fedkin.experiments")
    ] == []


@pytest.mark.parametrize("path", modules("engine"), ids=lambda p: p.stem)
def test_the_engine_names_no_method(path):
    assert [n for n in imports(path, top_level=True) if below(n, "fedkin.methods")] == []
    inside = [n for n in imports(path) if below(n, "fedkin.methods")]
    # run("fedavg", …) looks a name up in the registry; that is all
    assert inside in ([], ["fedkin.methods.method"])


@pytest.mark.parametrize("path", modules("report"), ids=lambda p: p.stem)
def test_the_report_reads_only_results(path):
    allowed = ("fedkin.results", "fedkin.report", "fedkin.__version__")
    assert [n for n in imports(path) if not below(n, *allowed)] == []


@pytest.mark.parametrize("path", modules("."), ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_imports_the_command_line(path):
    if path.relative_to(SOURCE).parts[0] not in ("cli", "cli.py", "__main__.py"):
        assert [n for n in imports(path) if below(n, "fedkin.cli")] == []


def test_the_rule_would_notice(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path / "fedkin")
    path = tmp_path / "fedkin" / "maths" / "bad.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import numpy\nimport fedkin.client.training\nfrom fedkin import run\n"
        "from ..engine import loop\nfrom . import cluster\n"
        "def f():\n    from fedkin.methods import method\n"
    )
    names = ["fedkin.client.training", "fedkin.run", "fedkin.engine.loop", "fedkin.maths.cluster"]
    assert sorted(imports(path, top_level=True)) == sorted(names)
    assert sorted(imports(path)) == sorted([*names, "fedkin.methods.method"])


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.processes
def test_import_fedkin_imports_nothing_else_and_so_is_quick():
    code = (
        "import sys; before = set(sys.modules); import fedkin; dir(fedkin);"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    assert python(code) == "fedkin"


@pytest.mark.processes
def test_the_registries_do_not_import_torch():
    code = (
        "import sys; from fedkin.methods import METHODS; from fedkin.models import MODELS;"
        "from fedkin.data import DATASETS; print('torch' in sys.modules)"
    )
    assert python(code) == "False"


@pytest.mark.parametrize("registry", [DATASETS, MODELS, METHODS], ids=["data", "models", "methods"])
def test_every_entry_can_be_loaded_and_says_what_it_is(registry):
    for name, entry in registry.items():
        assert callable(entry.load()), name
        assert entry.summary, name


def test_what_is_told_about_a_method_stands_in_its_own_file():
    """So that a new method is one file and one line in METHODS. `local` and `kin` have no paper."""
    without = {entry.load().__name__ for entry in METHODS.values() if not vars(entry.load()).get("citation")}
    assert without == {"Local", "Kin"}
    for name, entry in METHODS.items():
        fields = vars(entry.load())
        assert fields.get("travels"), name
        assert fields.get("stays"), name
        assert fields.get("paper") or entry.load().__name__ in without, name


def test_no_other_room_names_a_baseline():
    """A name in another room would be a second line that a new method needs. The experiments choose methods."""
    names = {name for name in METHODS if name not in ("local", "fedavg", "kin")}
    found = {
        (str(path.relative_to(SOURCE)), node.value)
        for path in modules(".")
        if path.relative_to(SOURCE).parts[0] not in ("methods", "experiments", "cli")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert found == {("deploy/scaffold.py", "fedcedar")}  # what `fedkin deploy init` takes where none is named


def test_public_names_are_there():
    for name in fedkin.__all__:
        assert getattr(fedkin, name) is not None, name
    with pytest.raises(AttributeError, match=r"fedkin has no 'ruun'; it has .*run"):
        _ = fedkin.ruun


# ---- registry


def test_lookup_hints():
    registry = {"fedavg": Entry("a:b", "one"), "fedprox": Entry("a:b", "two")}
    assert lookup(registry, "fedavg", "method").summary == "one"
    with pytest.raises(ValueError, match=r"no method 'fedavrg'. Did you mean fedavg.* Known: fedavg, fedprox"):
        lookup(registry, "fedavrg", "method")
    with pytest.raises(ValueError, match=r"no method 'xyz'. Known"):
        lookup(registry, "xyz", "method")
    many = registry | {f"other{i}": Entry("a:b", "three") for i in range(30)}
    with pytest.raises(
        ValueError, match=r"no data set 'fedavrg'. Did you mean fedavg.*\? `fedkin list datasets` shows all.$"
    ):
        lookup(many, "fedavrg", "data set")


def test_load_path_keeps_files_of_the_same_name_apart(tmp_path):
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"def f():\n    return {value}\n")
    one, two = (load_path(f"{tmp_path / folder / 'mine.py'}:f") for folder in "ab")
    assert (one(), two()) == (1, 2)


def test_load_path_from_a_package():
    assert load_path("fedkin.registry:lookup") is lookup


@pytest.mark.processes
def test_a_run_waits_for_nothing_that_it_does_not_need():
    """The compiler of torch, scikit-learn, pandas and the figures take longer to import than a small run takes."""
    code = (
        "import sys, fedkin;"
        "fedkin.run('fedavg', fedkin.federate('digits', clients=4), rounds=1, workers=1);"
        "print(sorted({'torch._dynamo', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    assert python(code) == "[]"
