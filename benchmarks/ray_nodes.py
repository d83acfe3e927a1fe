"""Two Ray nodes in network namespaces of this machine run one simulation; one node is killed in the middle of a round.

    sudo python benchmarks/ray_nodes.py

Needs root (`ip netns`). Prints where the workers were, what happened to the killed node, and whether the bits are those
of the pool. Everything that it starts lives in its two namespaces and ends with it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("fedkin-a", "fedkin-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 6391
ROUNDS = 12
DRIVER = """
import hashlib, sys
import fedkin
from fedkin.engine.scheduler import Scheduler
engine, address, out = sys.argv[1:]
digits = fedkin.federate("digits", partition="dirichlet", clients=12, seed=1)
if engine == "ray":
    from fedkin.engine.ray import Ray
    start = Ray._start
    def started(self, count, *others):
        made = start(self, count, *others)
        print("started", ["the other node" if w.away else "this node" for w in made], flush=True)
        return made
    Ray._start = started
run = fedkin.run(
    "scaffold", digits, model="cnn2", rounds=int({rounds}), epochs=2, evaluate_every=4, engine=engine,
    ray_address=address, workers=3, out=out,
)
digest = hashlib.blake2b(run.state["model"].numpy().tobytes(), digest_size=8).hexdigest()
dropped = len(list(run.history.select("dropped")))
print("bits", digest, "dropped", dropped, flush=True)
"""


def within(name: str, *command: str, **options: object) -> subprocess.Popen[str]:
    # on a busy machine Ray's own processes take longer to start than it waits
    patient = {"raylet_start_wait_time_s": "600", "agent_register_timeout_ms": "600000"}
    patient |= {"worker_register_timeout_seconds": "600", "USAGE_STATS_ENABLED": "0"}
    # no token: nobody else is in these two namespaces
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", **{f"RAY_{k}": v for k, v in patient.items()}}
    return subprocess.Popen(["ip", "netns", "exec", name, *command], env=environment, text=True, **options)


def members(name: str) -> list[int]:
    """Processes of a namespace."""
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def network() -> None:
    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    for name in NAMES:
        ip("netns", "add", name)
    ip("link", "add", "fedkin-va", "type", "veth", "peer", "name", "fedkin-vb")
    for name, link, address in zip(NAMES, ("fedkin-va", "fedkin-vb"), ADDRESSES):
        ip("link", "set", link, "netns", name)
        ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
        ip("-n", name, "link", "set", link, "up")
        ip("-n", name, "link", "set", "lo", "up")


def end() -> None:
    for name in NAMES:
        for pid in members(name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def ray(folder: Path, number: int) -> None:
    words = [f"--node-ip-address={ADDRESSES[number]}", "--disable-usage-stats"]
    if number == 0:
        words += ["--head", f"--port={PORT}", "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={folder}"]
    else:
        words += [f"--address={ADDRESSES[0]}:{PORT}", "--num-cpus=1"]
    command = str(Path(sys.executable).parent / "ray")
    done = within(NAMES[number], command, "start", *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text, _ = done.communicate(timeout=600)
    if done.returncode:
        raise SystemExit(f"ray start failed in {NAMES[number]}:\n{text}")


def rounds_done(out: Path) -> int:
    path = out / "timing.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    driver = DRIVER.replace("{rounds}", str(ROUNDS))
    folder = Path(tempfile.mkdtemp(prefix="fk-", dir="/tmp"))  # Ray's sockets need a short path
    pool = subprocess.run(
        [sys.executable, "-c", driver, "pool", "", str(folder / "pool")], capture_output=True, text=True, check=True
    )
    print(f"pool:      {pool.stdout.strip()}", flush=True)
    try:
        network()
        ray(folder / "ray", 0)
        ray(folder / "ray", 1)
        out = folder / "run"
        run = within(
            NAMES[0], sys.executable, "-c", driver, "ray", f"{ADDRESSES[0]}:{PORT}", str(out),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while rounds_done(out) < 4 and run.poll() is None:
            time.sleep(0.02)
        victims = members(NAMES[1])
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        print(f"killed the {len(victims)} processes of {NAMES[1]} after round {rounds_done(out)}", flush=True)
        text, _ = run.communicate(timeout=900)
        print("two nodes: " + "\n           ".join(text.strip().splitlines()[-8:]))
        same = pool.stdout.split()[1:2] == [line.split()[1] for line in text.splitlines() if line.startswith("bits")]
        print("the same bits" if same else "DIFFERENT", flush=True)
        if not same:
            raise SystemExit(1)
    finally:
        end()


if __name__ == "__main__":
    main()
