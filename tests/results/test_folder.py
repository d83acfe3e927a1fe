"""fedkin writes only into folders that are empty or its own, and removes only files that it made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedkin
from fedkin.results.folder import (
    MARKER,
    Folder,
    FolderError,
    check,
    check_label,
    inside,
    is_own,
    kind_of,
    own_files,
    prepare,
    remove_run,
)

pytestmark = pytest.mark.processes


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, with its content."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.fixture
def project(tmp_path) -> Path:
    """A user's folder with names that fedkin uses too."""
    root = tmp_path / "proj"
    for name in (
        "models/net.safetensors",
        "models/0123456789abcdef.safetensors",
        "checkpoint/server-000001.safetensors",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("mine")
    for name in ("src/code.py", "history.jsonl", "config.json", "report.html"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text('{"label": "mine"}')
    return root


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate("digits", clients=3, samples_per_client=30)


def play(fed, out, **settings):
    return fedkin.run("fedavg", fed, rounds=2, engine="serial", out=out, **settings)


@pytest.fixture(scope="module")
def finished(fed, tmp_path_factory) -> dict[str, bytes]:
    """The files of a small run."""
    out = tmp_path_factory.mktemp("finished") / "run"
    play(fed, out)
    return {name: content for name, content in tree(out).items() if content is not None}


@pytest.fixture
def run_folder(finished, tmp_path) -> Path:
    for name, content in finished.items():
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_bytes(content)
    return tmp_path / "run"


# ---- somebody else's folder


@pytest.mark.parametrize("fresh", [False, True])
def test_a_run_does_not_touch_a_folder_that_is_not_its_own(fed, project, fresh):
    before = tree(project)
    with pytest.raises(FolderError, match=r"holds files that fedkin did not write \(checkpoint, config.json, .*--out"):
        play(fed, project, fresh=fresh)
    assert tree(project) == before


def test_a_comparison_does_not_touch_a_folder_that_is_not_its_own(fed, project):
    before = tree(project)
    for fresh in (False, True):
        with pytest.raises(FolderError, match="did not write"):
            fedkin.compare(["local"], fed, rounds=1, out=project, fresh=fresh)
    assert tree(project) == before


COMMAND = [sys.executable, "-m", "fedkin"]


@pytest.mark.parametrize(
    ("words", "where", "says"),
    [
        (["run", "fedavg", "--out", "."], "proj", "did not write"),
        (["run", "fedavg", "--fresh", "--out", "."], "proj", "did not write"),
        (["compare", "src", "--fresh", "--out", "."], "proj", "There is no method 'src'"),
        (["compare", "local", "..", "--fresh", "--out", "proj/results"], ".", "There is no method '..'"),
        (["compare", "local", "--fresh", "--out", "."], "proj", "did not write"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_commands_that_deleted_users_files(project, words, where, says):
    """From the command line, as they were reported."""
    before = tree(project)
    flags = ["--rounds", "1", "--clients", "3", "--samples-per-client", "30", "--engine", "serial", "--quiet"]
    done = subprocess.run([*COMMAND, *words, *flags], cwd=project.parent / where, capture_output=True, text=True)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert tree(project) == before


def test_an_empty_folder_and_a_new_one_are_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new/deep"):
        prepare(tmp_path / name, "run")
        assert kind_of(tmp_path / name) == "run"
        assert json.loads((tmp_path / name / MARKER).read_text())["format"] == 1


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderError, match="is a file, not a folder"):
        prepare(tmp_path / "file", "run")
    with pytest.raises(FolderError, match=r"cannot be created: .*file is a file"):
        prepare(tmp_path / "file" / "below", "run")
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    with pytest.raises(FolderError, match="is a broken link"):
        prepare(tmp_path / "nowhere", "run")
    assert sorted(os.listdir(tmp_path)) == ["file", "nowhere"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(FolderError, match="Permission denied"):
        prepare(tmp_path / "locked" / "run", "run")


def test_a_comparison_is_no_run_and_the_other_way_round(tmp_path):
    prepare(tmp_path / "a", "comparison")
    with pytest.raises(FolderError, match="holds a fedkin comparison, not a run"):
        check(tmp_path / "a", "run")
    prepare(tmp_path / "b", "run")
    with pytest.raises(FolderError, match="holds a fedkin run, not a comparison"):
        check(tmp_path / "b", "comparison")


# ---- our own folder


def test_fresh_removes_our_files_and_leaves_those_of_the_user(fed, run_folder):
    mine = ["notes.txt", "models/mine.safetensors", "checkpoint/backup.zip", "figures/curve.png", ".git/config"]
    for name in mine:
        (run_folder / name).parent.mkdir(exist_ok=True)
        (run_folder / name).write_text("mine")
    (run_folder / "checkpoint" / f".{'0' * 16}").write_text("half written")
    result = play(fed, run_folder, fresh=True, lr=0.2)
    assert json.loads((run_folder / "config.json").read_text())["training"]["lr"] == 0.2
    assert result.summary["rounds"] == 2
    for name in mine:
        assert (run_folder / name).read_text() == "mine", name
    assert not (run_folder / "checkpoint" / f".{'0' * 16}").exists()


def test_a_run_removes_no_model_that_it_did_not_write(fed, run_folder):
    (run_folder / "models/best.safetensors").write_text("mine")
    fedkin.run("fedavg", fed, rounds=3, engine="serial", out=run_folder)
    assert (run_folder / "models/best.safetensors").read_text() == "mine"


def test_every_file_of_a_run_is_listed_as_its_own(run_folder):
    found = {str(p.relative_to(run_folder)) for p in own_files(run_folder, "run")}
    there = {name for name, content in tree(run_folder).items() if content is not None}
    assert there - found == {MARKER}
    remove_run(run_folder)
    assert not run_folder.exists()


def test_a_removed_run_leaves_the_users_files_and_the_folder_stays_ours(fed, run_folder):
    (run_folder / "models/mine.txt").write_text("mine")
    remove_run(run_folder)
    assert {name for name, content in tree(run_folder).items() if content is not None} == {MARKER, "models/mine.txt"}
    play(fed, run_folder)
    assert (run_folder / "models/mine.txt").read_text() == "mine"
    remove_run(run_folder / "absent")  # nothing to do


def test_somebody_elses_folder_is_not_removed(project):
    before = tree(project)
    with pytest.raises(FolderError, match="did not write"):
        remove_run(project)
    assert tree(project) == before


def test_runs_and_comparisons_from_before_the_marker_are_ours(fed, run_folder, tmp_path):
    (run_folder / MARKER).unlink()
    assert kind_of(run_folder) == "run"
    stamp = (run_folder / "history.jsonl").stat().st_mtime_ns
    assert play(fed, run_folder).summary["rounds"] == 2
    assert (run_folder / "history.jsonl").stat().st_mtime_ns == stamp, "not run again"
    old = tmp_path / "comparison"
    old.mkdir()
    (old / "comparison.json").write_text('{"setting": "", "methods": []}')
    assert kind_of(old) == "comparison"
    (old / "comparison.json").write_text('{"methods": []}')
    assert kind_of(old) is None
    (old / "comparison.json").write_text("no json")
    assert kind_of(old) is None
    (old / "runs/one").mkdir(parents=True)
    (old / "runs/one/cell.json").write_text("{}")
    assert kind_of(old) == "experiment"


def test_a_kill_right_after_the_marker_was_created(fed, tmp_path):
    (tmp_path / MARKER).touch()
    assert play(fed, tmp_path).summary["rounds"] == 2


# ---- links


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["models", "checkpoint", "history.jsonl", "models/index.json", MARKER])
def test_a_link_in_our_folder_is_not_followed(fed, run_folder, tmp_path, name, fresh):
    outside = tmp_path / "outside"
    target = run_folder / name
    target.rename(outside)
    target.symlink_to(outside)
    before = tree(tmp_path)
    with pytest.raises(FolderError, match="is a link|did not write" if name == MARKER else "is a link"):
        play(fed, run_folder, fresh=fresh, lr=0.3)
    assert tree(tmp_path) == before


def test_a_folder_where_a_file_should_be(fed, run_folder):
    (run_folder / "summary.json").unlink()
    (run_folder / "summary.json").mkdir()
    with pytest.raises(FolderError, match=r"summary\.json should be a file"):
        play(fed, run_folder)


def test_out_itself_may_be_a_link(fed, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    play(fed, tmp_path / "out")
    assert (tmp_path / "disk/config.json").exists()


def test_a_label_linked_elsewhere_is_not_followed(fed, tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    prepare(out, "comparison")
    (elsewhere / "seed-0").mkdir(parents=True)
    (out / "local").symlink_to(elsewhere)
    before = tree(elsewhere)
    for fresh in (False, True):
        with pytest.raises(FolderError, match="is a link"):
            fedkin.compare(["local"], fed, rounds=1, out=out, fresh=fresh, engine="serial")
    assert tree(elsewhere) == before


# ---- names


@pytest.mark.parametrize("label", ["", ".", "..", "..."])
def test_labels_that_are_no_names(label):
    with pytest.raises(FolderError, match="cannot be the name of a folder"):
        check_label(label)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0b"])
def test_names_that_lead_elsewhere(tmp_path, name):
    with pytest.raises(FolderError, match="cannot be the name of a folder"):
        inside(tmp_path, name)
    with pytest.raises(FolderError):
        inside(tmp_path, "fine", name)


def test_labels_stay_below_their_folder():
    assert check_label("fedprox,mu=0.1") == "fedprox,mu=0.1"
    assert check_label("a/b") == "a_b"
    assert check_label("../x.py:Mine") == ".._x.py_Mine"
    long, other = check_label("é" * 300 + "a"), check_label("é" * 300 + "b")
    assert long != other
    assert len(long.encode()) <= 120


def test_two_labels_of_one_folder_are_refused(fed, tmp_path):
    with pytest.raises(ValueError, match="would share the folder a_b"):
        fedkin.compare(["a/b", "a:b"], fed, rounds=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists(), "names are checked before anything is touched"


def test_fresh_comparison_removes_its_runs_alone(fed, tmp_path):
    settings = {"rounds": 1, "engine": "serial", "out": tmp_path / "out"}
    fedkin.compare(["local", "fedavg"], fed, **settings)
    (tmp_path / "out/local/seed-0/notes.txt").write_text("mine")
    (tmp_path / "out/local/plan.txt").write_text("mine")
    (tmp_path / "out/other").mkdir()
    stamp = (tmp_path / "out/fedavg/seed-0/history.jsonl").stat().st_mtime_ns
    fedkin.compare(["local"], fed, fresh=True, lr=0.3, **settings)
    assert json.loads((tmp_path / "out/local/seed-0/config.json").read_text())["training"]["lr"] == 0.3
    assert (tmp_path / "out/local/seed-0/notes.txt").read_text() == "mine"
    assert (tmp_path / "out/local/plan.txt").read_text() == "mine"
    assert (tmp_path / "out/other").is_dir()
    assert (tmp_path / "out/fedavg/seed-0/history.jsonl").stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("config.json", True),
        ("models/0123456789abcdef.safetensors", True),
        ("models/best.safetensors", False),
        ("models/sub/0123456789abcdef.safetensors", False),
        ("checkpoint/client-000001-000002-1.safetensors", True),
        ("checkpoint/client-1.safetensors", False),
        ("../config.json", False),
        ("config.json\n", False),
        (".0123456789abcdef", True),
        (".gitignore", False),
    ],
)
def test_own_names(name, ours):
    assert is_own(name) == ours


# ---- one process at a time


HOLD = """
import sys
from fedkin.results.folder import Folder
with Folder(sys.argv[1], "run"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_a_second_process_is_refused_and_a_dead_one_does_not_block(fed, spawn, tmp_path):
    other = spawn([sys.executable, "-c", HOLD, tmp_path / "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(FolderError, match=rf"in use by another fedkin \(process {other.pid} on "):
        play(fed, tmp_path / "run")
    with pytest.raises(FolderError, match="in use"):
        play(fed, tmp_path / "run", fresh=True)
    other.kill()
    other.wait()
    other.stdin.close()
    play(fed, tmp_path / "run")


def test_the_same_process_is_refused_too_and_may_come_again(tmp_path):
    with Folder(tmp_path / "run", "run"), pytest.raises(FolderError, match="in use"), Folder(tmp_path / "run", "run"):
        pass
    with Folder(tmp_path / "run", "run"):
        pass


FORK = """
import os, sys
from fedkin.results.folder import Folder
with Folder(sys.argv[1], "run"):
    if not os.fork():
        print("child", os.getpid(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_lock(spawn, tmp_path):
    command = [sys.executable, "-c", FORK, tmp_path / "run"]
    parent = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline().split()[1])
    with pytest.raises(FolderError, match="in use"), Folder(tmp_path / "run", "run"):
        pass
    parent.kill()
    parent.wait()
    os.kill(child, 0)  # it lives
    with Folder(tmp_path / "run", "run"):
        pass
    parent.stdin.close()
