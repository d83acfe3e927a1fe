from __future__ import annotations

import pytest

from fedkin.cli import main

SMALL = ("--clients", "5", "--rounds", "2", "--samples-per-client", "40", "--quiet")


@pytest.fixture
def call(capsys):
    """Run a command as a user types it: exit code, output, errors."""

    def called(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return called


@pytest.fixture
def fails(call):
    """Run a command that must fail with code 2 and one line on stderr, and return the line."""

    def failed(*words: object) -> str:
        code, out, err = call(*words)
        assert code == 2, out + err
        assert len(err.splitlines()) == 1, err
        assert "Traceback" not in out + err
        return err

    return failed
