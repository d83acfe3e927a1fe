"""A deployment on loopback for tests: a superlink, supernodes and runs, each in a process group that is ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedkin.deploy.keys
import fedkin.deploy.scaffold
from fedkin.results.history import History
from tests.ports import free_port
from tests.processes import family, wait_until_gone

BIN = Path(sys.executable).parent
NAMES = ("north", "south", "west")
ONLINE = "SuperNode ID:"  # a supernode logs this when the superlink has accepted it
FIRST_CIRCLE = (  # the four systems, and the baselines of their papers
    "fedcedar",
    "pflic",
    "pfedgat",
    "dcpfl",
    "perfedavg",
    "pfedme",
    "pfedbayes",
    "sfl",
    "sfl-star",
    "ifca",
    "fedsem",
    "clustered-sampling",
    "clustered-sampling-2",
    "cfl",
    "fedamp",
    "heurfedamp",
    "pfedhn",
    "fedrod",
    "knnper",
    "fedah",
    "clusterfl",
    "clusterfl-kmeans",
)


class Sites:
    def __init__(
        self,
        folder: Path,
        *,
        tls: bool = False,
        method: str = "fedcedar",
        clients: tuple[str, ...] = NAMES,
        **given: Any,
    ) -> None:
        self.folder, self.tls, self.method, self.port = folder, tls, method, free_port()
        fedkin.deploy.scaffold.init(
            fedkin.deploy.scaffold.Init(
                folder, method=method, clients=clients, superlink=f"127.0.0.1:{self.port}", **given
            )
        )
        if tls:
            fedkin.deploy.keys.keys(fedkin.deploy.keys.Keys(folder))
        self.private = fedkin.deploy.keys.private_folder(folder)
        self.ports = {name: free_port() for name in clients}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> Sites:
        self.superlink()
        return self

    def __exit__(self, *_: object) -> None:
        while pids := self.mine():  # again, in case one of them has just started another
            for pid in pids:
                send(pid, signal.SIGKILL)
            for process in self.processes.values():
                process.wait()
            wait_until_gone(pids)

    def mine(self) -> list[int]:
        """Everything that runs for this deployment, wherever it hangs: Flower starts processes in sessions of their
        own, but all of them have our FLWR_HOME."""
        mark = f"FLWR_HOME={self.folder / 'flower'}".encode()
        out = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    out.append(int(process.name))
        return out

    # ---- processes
    def start(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / words[0]), *words[1:]],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """A process and everything that it started, at once."""
        process = self.processes.pop(name)
        for pid in family(process.pid):
            send(pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> None:
        """Ask a process to end, and wait for it. What it started may live on."""
        process = self.processes.pop(name)
        process.terminate()
        process.wait()

    def unwatch(self) -> None:
        """End the log of the run, not the run: the superlink does not stop while somebody reads a log."""
        self.kill("run")
        (self.folder / "run.log").unlink()

    def serving(self) -> list[int]:
        """Processes of the run's server."""
        out = []
        for pid in self.mine():
            with contextlib.suppress(OSError):
                if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    out.append(pid)
        return out

    def at_work(self, name: str) -> int | None:
        """The process of the site's ClientApp, once it has its task: then it imports our code, and torch with it."""
        for pid in family(self.processes[name].pid):
            with contextlib.suppress(OSError):
                is_app = b"flwr-clientapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
                if is_app and b"libtorch" in Path(f"/proc/{pid}/maps").read_bytes():
                    return pid
        return None

    def rounds(self) -> int:
        """Rounds that are behind the run."""
        path = self.folder / "server" / self.method / "timing.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def superlink(self) -> None:
        """Start it, on the database of the one before if there was one."""
        words = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--database", "server/state.db"]
        keys = ["--ssl-ca-certfile", "keys/ca.crt", "--ssl-certfile", "keys/server.crt", "--ssl-keyfile"]
        words += [*keys, f"{self.private}/server.key", "--enable-supernode-auth"] if self.tls else ["--insecure"]
        self.start("superlink", *words)
        self.until(self._listens)

    def _listens(self) -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def supernode(self, name: str, *, key: str | None = None) -> None:
        words = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", str(self.ports[name])]
        words += ["--node-config", f"sites/{name}.toml"]
        secure = ["--root-certificates", "keys/ca.crt", "--auth-supernode-private-key", key or f"{self.private}/{name}"]
        self.start(name, *words, *(secure if self.tls else ["--insecure"]))

    def own_data(self, name: str, rows: Path) -> None:
        """A site's file that names a file of rows."""
        state = self.folder / "sites" / name
        (self.folder / "sites" / f"{name}.toml").write_text(f'name = "{name}"\ndata = "{rows}"\nstate = "{state}"\n')

    def flwr(self, *words: str) -> str:
        command = [str(BIN / "flwr"), *words]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def register(self, name: str) -> None:
        self.flwr("supernode", "register", f"keys/{name}.pub", "tls")

    def run(self, app: str = "app", **config: Any) -> None:
        """Start a run and write down its log; `run__rounds=2` becomes run.rounds=2."""
        words = [f"{key.replace('__', '.')}={_toml(value)}" for key, value in config.items()]
        more = ["--run-config", " ".join(words)] if words else []
        self.start("run", "flwr", "run", app, "tls" if self.tls else "plain", "--stream", *more)

    # ---- looking
    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def out(self) -> Path:
        return self.folder / "server" / self.method

    def history(self) -> History:
        return History.load(self.out)

    def finished(self) -> bool:
        done = (self.out / "summary.json").exists()
        assert done or "Exit Code" not in self.log("run"), f"the run failed:\n{self.log('run')}"
        return done

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that nobody announces. There is no time limit but the test's own, at which the logs show
        what happened."""
        try:
            while not condition():
                link = self.processes.get("superlink")
                assert link is None or link.poll() is None, "the superlink has ended"
                time.sleep(0.1)
        except BaseException as error:
            for path in self.folder.glob("*.log"):
                error.add_note(f"---- {path.stem}\n{path.read_text(errors='replace')[-3000:]}")
            raise

    def until_finished(self) -> None:
        self.until(self.finished)

    def until_online(self, name: str) -> bool:
        """Wait until a supernode that was just started is registered, or has ended; returns whether it is online."""
        seen = self.log(name).count(ONLINE)
        self.supernode(name)
        process = self.processes[name]
        self.until(lambda: process.poll() is not None or self.log(name).count(ONLINE) > seen)
        return process.poll() is None

    def personal(self, name: str) -> Path:
        (found,) = (self.folder / "sites" / name).glob(f"*/{name}/personal.safetensors")
        return found


def send(pid: int, how: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
