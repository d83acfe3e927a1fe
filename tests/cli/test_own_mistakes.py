"""Mistakes in a user's own method end in one line that says where and what to do."""

from pathlib import Path

import pytest

from fedkin.cli.main import main

METHOD = """
from dataclasses import dataclass
import fedkin
from fedkin import Message, Method, Reply

@dataclass(frozen=True)
class Mine(Method):
    def init(self, fed):
        return {"mean": fed.initial(0)}

    def send(self, state, ids):
        return Message((state["mean"],))

    def local(self, client, message):
        return Reply({}, (fedkin.sgd(client, message.shared[0]),))

    def merge(self, state, sent, replies):
        return {"mean": replies.weights @ replies.body[0]}

    def personal(self, client, message, trained):
        return message.shared[0]
"""
RUN = ["--clients", "3", "--rounds", "1", "--samples-per-client", "30", "--engine", "serial", "--quiet"]


def run(folder: Path, source: str, capsys: pytest.CaptureFixture[str], name: str = ":Mine") -> str:
    (folder / "mine.py").write_text(source)
    with pytest.raises(SystemExit) as stop:
        main(["run", f"{folder / 'mine.py'}{name}", *RUN])
    said = capsys.readouterr().err.strip().splitlines()
    if stop.value.code == 0:
        return ""
    assert stop.value.code == 2
    assert len(said) == 1
    return said[0]


MISTAKES = {
    "init returns None": (
        'return {"mean": fed',
        '{"mean": fed',
        "Mine.init must return the state, a dict of named arr",
    ),
    "send returns None": ("return Message((", "Message((", "send must return Message(shared, own); it returned None."),
    "merge returns None": ('return {"mean": rep', '{"mean": rep', "Mine.merge must return the state, a dict of named"),
    "personal returns None": (
        "return message.shared",
        "message.shared",
        "Mine.personal must return a flat vector or a",
    ),
    "local returns None": ("return Reply(", "Reply(", "local must return Reply(state, body); it returned None."),
    "merge has a typo": ("replies.weights", "replies.weight", "mine.py, line 18, in merge: AttributeError"),
    "merge has another shape": ("replies.body[0]", "replies.body[0].T", "mine.py, line 18, in merge: RuntimeError"),
    "a colon is missing": ("(self, fed):", "(self, fed)", "mine.py, line 8: SyntaxError"),
    "an import fails": ("import fedkin\n", "import fedkinn\n", "mine.py, line 3: ModuleNotFoundError"),
    "not a dataclass": ("@dataclass(frozen=True)", "", "put @dataclass(frozen=True) above the class"),
    "not a method": ("Mine(Method)", "Mine", "is not a method: write class Mine(fedkin.Method)."),
}


def test_the_method_without_mistakes_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, METHOD, capsys) == ""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_one_line(mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong, expected = MISTAKES[mistake]
    assert METHOD.count(right) == 1
    assert expected in run(tmp_path, METHOD.replace(right, wrong), capsys)


NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = torch.nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def forward(self, x):
        LAST
"""


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("self.layer(x.flatten(1))", "it returned None: does its last line lack a `return`?"),
        ("return self.layer(x.flatten(1)), x", "it returned a tuple."),
        ("return x.flatten(1)", "Change the size of its last layer to 10."),
    ],
)
def test_what_a_network_returns(last: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(NET.replace("LAST", last))
    with pytest.raises(SystemExit):
        main(["run", "fedavg", "--model", f"{tmp_path / 'net.py'}:Net", *RUN])
    assert expected in capsys.readouterr().err


def test_many_clients_with_one_mistake_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(METHOD.replace("fedkin.sgd(", "fedkin.sdg("))
    words = ["--clients", "5", "--rounds", "1", "--samples-per-client", "30", "--engine", "pool", "--workers", "1"]
    with pytest.raises(SystemExit):
        main(["run", f"{tmp_path / 'mine.py'}:Mine", *words])
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "All 5 clients failed for one reason: round 1, hook local: AttributeError" in said
    assert "(mine.py, line 15, in local)" in said


def test_a_file_without_a_class_says_how_to_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "mine.py:ClassName" in run(tmp_path, METHOD, capsys, name="")


def test_a_misspelled_column_and_folder_get_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("north", "south"):
        lines = [f"{number},{number % 3},{'yes' if number % 2 else 'no'}" for number in range(30)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,visits,disease", *lines]))
    said = []
    for words in (["--label", "diseas"], ["--label", "disease", "--ignore", "visit"]):
        with pytest.raises(SystemExit):
            main(["run", "local", "--data", str(tmp_path), *words])
        said.append(capsys.readouterr().err)
    with pytest.raises(SystemExit):
        main(["run", "local", "--data", "hospitalz", "--label", "disease"])
    said.append(capsys.readouterr().err)
    assert "there is 'disease'" in said[0]
    assert said[0].startswith("fedkin: north.csv, south.csv: none of the 3 columns")
    assert len(said[0].splitlines()) == 1
    assert "Did you mean visits?" in said[1]
    assert "hospitalz is neither a folder nor a built-in data set" in said[2]
