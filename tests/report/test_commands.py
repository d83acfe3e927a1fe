"""`fedkin report`, `watch` and `figures` as a user types them."""

from __future__ import annotations

import pytest

from fedkin.cli import main


def call(capsys, *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def test_report_of_a_comparison(capsys, comparison, tmp_path):
    code, out, _ = call(capsys, "report", comparison, "--out", tmp_path / "new" / "page.html")
    assert (code, out) == (0, f"Report: {tmp_path / 'new' / 'page.html'}\n")
    text = (tmp_path / "new" / "page.html").read_text()
    assert "6 methods on digits, rotated partition" in text
    assert "wang2024rethinking" in text, "the papers of the methods are cited"


def test_report_of_two_runs_goes_to_the_first(capsys, comparison, tmp_path):
    folders = [comparison / name / "seed-0" for name in ("local", "fedavg")]
    code, out, _ = call(capsys, "report", *folders)
    assert (code, out) == (0, f"Report: {folders[0] / 'report.html'}\n")
    (folders[0] / "report.html").unlink()


def test_figures(capsys, comparison, tmp_path):
    code, out, _ = call(capsys, "figures", comparison / "fedavg" / "seed-0", "--format", "svg", "--out", tmp_path)
    assert code == 0
    assert sorted(out.split()) == sorted(str(path) for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report"], "needs a folder"),
        (["watch"], "needs a folder"),  # one without a run is all right: it waits for it
        (["figures"], "needs a folder"),
        (["report", "nowhere"], "nowhere is not a folder"),
        (["figures", "nowhere"], "nowhere is not a folder"),
        (["report", "."], "No run in ."),
        (["figures", "."], "No run in ."),
    ],
)
def test_mistakes_are_explained(capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *words)
    assert code == 2
    assert said in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("words", "name"),
    [(["report", "--out", "south.csv"], "south.csv"), (["figures", "--out", ".", "--format", "svg"], "costs.svg")],
)
def test_a_file_of_the_users_is_not_replaced_and_one_of_ours_is(capsys, comparison, tmp_path, monkeypatch, words, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("mine")
    code, _, err = call(capsys, words[0], comparison, *words[1:])
    assert (code, f"{name} is there, and fedkin did not write it. Name another file with --out." in err) == (2, True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}
    (tmp_path / name).unlink()
    for _ in range(2):
        assert call(capsys, words[0], comparison, *words[1:])[0] == 0


def test_help(capsys):
    for command, flag in (("report", "--out"), ("watch", "--port"), ("figures", "--format")):
        code, out, _ = call(capsys, command, "--help")
        assert code == 0
        assert flag in out
