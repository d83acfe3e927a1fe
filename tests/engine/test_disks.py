"""Real disks that are full or cannot be written: a small tmpfs in a namespace of its own, if the system allows it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.test_resume import files
from tests.processes import needs_linux

pytestmark = [pytest.mark.processes, pytest.mark.slow, needs_linux]
RUN = (
    f"{sys.executable} -m fedkin run ditto --data digits --clients 4 --samples-per-client 40 --rounds 6 "
    "--checkpoint-every 2 --workers 2 --quiet --json --out"
)


def in_namespace(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount file systems, which nobody else sees. `$disk` is a folder for one."""
    (folder / "disk").mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "x", folder / "disk"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a tmpfs")
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"disk={folder / 'disk'}; {script}"], capture_output=True, text=True
    )


@pytest.mark.parametrize("kilobytes", [40, 150, 400])
def test_a_full_disk_and_then_a_larger_one(tmp_path, kilobytes):
    done = in_namespace(
        f"mount -t tmpfs -o size={kilobytes}k x $disk; {RUN} $disk/run; echo first $?; "
        f"mount -o remount,size=64m $disk; {RUN} $disk/run; echo second $?; cp -r $disk/run {tmp_path}/run; "
        f"{RUN} {tmp_path}/straight",
        tmp_path,
    )
    assert "first 2" in done.stdout
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "second 0" in done.stdout
    assert files(tmp_path / "run") == files(tmp_path / "straight")


def test_a_disk_that_cannot_be_written(tmp_path):
    done = in_namespace(f"mount -t tmpfs -o ro x $disk; {RUN} $disk/run; echo first $?", tmp_path)
    assert "first 2" in done.stdout
    assert done.stderr.startswith("fedkin: Cannot write to ")
    assert "Read-only file system" in done.stderr
    assert len(done.stderr.splitlines()) == 1
