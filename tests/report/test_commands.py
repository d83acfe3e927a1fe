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


def test_help(capsys):
    for command, flag in (("report", "--out"), ("watch", "--port"), ("figures", "--format")):
        code, out, _ = call(capsys, command, "--help")
        assert code == 0
        assert flag in out
