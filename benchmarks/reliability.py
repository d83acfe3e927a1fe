"""What goes wrong, and what fedkin does then: counts and outcomes for docs/reliability.md.

    python benchmarks/reliability.py [kills | drops | fuzz | load] ... [--quick]

Each part is measured, and what it found is stored in docs/results/reliability/PART.json. The page is then made from
what is stored, so that parts can be measured one by one. Without a part, only the page is made.

- kills: SIGKILL at random instants, of the run, of a worker and inside a write; each run goes on to the same bits.
- drops: accuracy with 30 % of the replies lost and with bad replies, beside the clean run.
- fuzz: random input to the command line, config files, data files, the wire codec, checkpoints and the report.
- load: memory and file handles over 2,000 rounds, 10,000 clients, 1,000 sites, the page of 10,000 rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the parts are the slow tests

import torch  # noqa: E402

import fedkin  # noqa: E402
from fedkin.report.tables import markdown  # noqa: E402

STORED = ROOT / "docs" / "results" / "reliability"
PAGE = ROOT / "docs" / "reliability.md"
Found = dict[str, Any]
ONLY: list[str] = []  # targets of fuzz, or methods of kills and drops; the others stay as they are stored


def kills(folder: Path, quick: bool) -> Found:
    from tests.engine.test_kills import CLIENTS, KILLS, SETTINGS, SYSTEMS, endure

    federation = fedkin.federate(**CLIENTS)
    methods = _stored_methods("kills", SYSTEMS)
    for name in ONLY or SYSTEMS:
        methods[name] = endure(name, federation, folder / name, kills=2 if quick else KILLS, seed=len(name))
        print(name, methods[name], flush=True)
    return {"methods": methods, "clients": CLIENTS, "settings": SETTINGS}


def _stored_methods(part: str, names: Iterable[str]) -> Found:
    """What is stored of these methods, if only some of them are measured now."""
    path = STORED / f"{part}.json"
    stored = json.loads(path.read_text())["methods"] if ONLY and path.exists() else {}
    return {name: stored[name] for name in names if name in stored}


DROPS: dict[str, Any] = {"data": "digits", "clients": 20, "partition": "dirichlet", "alpha": 0.3}
PLANS = {"clean": "", "drop": "drop=0.3", "mixed": "drop=0.3,slow=0.1,nan=0.05,shape=0.02"}
METHODS = ("local", "fedavg", "fedcedar", "pflic", "pfedgat", "dcpfl", "kin")


def drops(folder: Path, quick: bool) -> Found:
    """Mean personal accuracy after the last round under each plan, and how many replies were lost and quarantined."""
    rounds, seeds = (2, (0,)) if quick else (30, (0, 1, 2))
    methods = _stored_methods("drops", METHODS)
    methods |= {name: {plan: [] for plan in PLANS} for name in ONLY or METHODS}
    for seed in seeds:
        federation = fedkin.federate(**DROPS, seed=seed)
        for name, plan in itertools.product(ONLY or METHODS, PLANS):
            done = fedkin.run(name, federation, rounds=rounds, lr=0.1, seed=seed, faults=PLANS[plan], evaluate_every=0)
            summary = done.summary
            methods[name][plan].append({
                "personal": summary["personal"]["mean"],
                "dropped": summary["dropped"],
                "quarantined": sum(summary["quarantined"].values()),
                "clients_quarantined": len(summary["quarantined"]),
                "measured": summary["measured"],
            })  # fmt: skip
            print(seed, name, plan, methods[name][plan][-1], flush=True)
    return {"methods": methods, "clients": DROPS, "plans": PLANS, "rounds": rounds, "seeds": len(seeds)}


def fuzz(folder: Path, quick: bool) -> Found:
    """A case that fails raises, and nothing of its target is stored: what is stored worked or was refused."""
    from tests.fuzz.harness import hunt
    from tests.fuzz.targets import TARGETS
    from tests.fuzz.test_fuzz import MANY

    tempfile.tempdir = str(folder)
    for name in ONLY or TARGETS:
        about, target, values, share = TARGETS[name]
        found = hunt(target, values, max(1, round(share * (100 if quick else MANY))))
        print(name, dict(found), flush=True)
        if not quick:  # target by target: all of them take long
            stored = json.loads((STORED / "fuzz.json").read_text()) if (STORED / "fuzz.json").exists() else {}
            targets = {**stored.get("targets", {}), name: {"about": about, **found}}
            _store("fuzz", {"targets": targets})
    return {} if quick else json.loads((STORED / "fuzz.json").read_text())


def load(folder: Path, quick: bool) -> Found:
    parts: dict[str, Callable[[], Found]] = {
        "rounds": lambda: _rounds(folder / "rounds", 200 if quick else 2000),
        "history": lambda: _history(folder, 50 if quick else 2000),
        "clients": lambda: _clients(100 if quick else 10_000),
        "sites": lambda: _sites(10 if quick else 1000),
        "watch": lambda: _watch(folder / "watch", 100 if quick else 10_000),
    }
    stored = json.loads((STORED / "load.json").read_text()) if ONLY and (STORED / "load.json").exists() else {}
    measured = {name: {**parts[name](), "date": time.strftime("%Y-%m-%d")} for name in ONLY or parts}
    return {name: measured.get(name) or stored[name] for name in parts if name in {*measured, *stored}}


def _rounds(folder: Path, rounds: int) -> Found:
    from tests.engine.test_memory import last_slope, samples

    found = samples(rounds, folder)
    at = [found[len(found) * part // 4 - 1] for part in (1, 2, 3, 4)]
    return {
        "rounds": rounds,
        "megabytes": [round(memory / 1e6, 1) for _, memory, _ in at],
        "handles": [handles for _, _, handles in at],
        "slope_megabytes_per_100_rounds": round(last_slope(found) / 1e4, 3),
    }


def _written(folder: Path, rounds: int, clients: int = 10) -> Path:
    """A run's folder with so many rounds, as the recorder would have written it."""
    from fedkin.results.history import ALL, History

    folder.mkdir(parents=True)
    options = {"seed": 0, "rounds": rounds, "participation": 1.0}
    config = {"label": "fedavg", "options": options, "federation": {"data": "digits"}, "method": {}}
    (folder / "config.json").write_text(json.dumps(config))
    history = History(folder / "history.jsonl")
    for client in range(clients):
        history.add(0, client, "train_rows", 40)
    for number in range(1, rounds + 1):
        for client in range(clients):
            for metric in ("bytes_down", "bytes_up", "flops"):
                history.add(number, client, metric, 12345)
            for metric in ("personal", "received", "personal_loss"):
                history.add(number, client, metric, 0.5 + 0.1 * (number * client % 5), ALL)
        history.add(number, None, "compute_seconds", 1.5)
        history.add(number, None, "communication_seconds", 0.5)
    history.close()
    return folder


def _history(folder: Path, rounds: int) -> Found:
    """Seconds to read a history, and one of four times its length, round by round."""
    from fedkin.results.history import History

    seconds = []
    for times in (1, 4):
        path = _written(folder / f"history-{times}", times * rounds)
        start = time.process_time()
        read = History.load(path)
        for number in read.rounds():
            read.values("personal", round=number)
        seconds.append(round(time.process_time() - start, 2))
    return {"rounds": [rounds, 4 * rounds], "seconds": seconds}


def _clients(count: int) -> Found:
    import resource

    start = time.monotonic()
    federation = fedkin.federate(
        "synthetic", partition="by_group", clients=count, data_options={"samples": 20 * count, "groups": 4}
    )
    done = fedkin.run("fedavg", federation, rounds=5, participation=0.01, evaluate_every=0)
    return {
        "clients": count,
        "measured": done.summary["measured"],
        "seconds": round(time.monotonic() - start),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
    }


def _sites(count: int) -> Found:
    """Requests to so many sites and their answers, over the bytes that Flower would send."""
    from fedkin.deploy import codec
    from fedkin.protocol import Message
    from tests.deploy.memory import wired
    from tests.fuzz.targets import filled

    vector = torch.linspace(-1, 1, 10_000)
    start = time.monotonic()
    total, sent = torch.zeros(10_000, dtype=torch.float64), 0
    for site in range(count):
        request = codec.encode_request(filled(codec.Request)._replace(number=site), Message((vector,), ()))
        came, message = codec.decode_request(wired(request))
        assert came.number == site
        body = message.shared[0] + site
        answer = codec.encode_answer(filled(codec.Answer), (body,), {"personal": 0.5})
        total += codec.decode_answer(wired(answer))[1][0].double()
        sent += 2 * vector.numel() * 4
    exact = sum((vector + site).double() for site in range(count))
    return {
        "sites": count,
        "exact": bool(torch.equal(total, exact)),
        "megabytes": round(sent / 1e6),
        "seconds": round(time.monotonic() - start, 1),
    }


def _watch(folder: Path, rounds: int) -> Found:
    """How long the first answer takes, how many it takes to read the whole history, and how long an answer takes that
    follows a run that goes on."""
    from fedkin.report.watch import Feed

    _written(folder, rounds)
    feed = Feed([folder], lambda labels: "", clock=lambda: 0.0)  # so that no answer is an old one
    took, later, data = [], [], {"reading": 0.0}
    while "reading" in data:
        start = time.process_time()  # other programs on the machine do not count
        data = feed.now()
        took.append(round(time.process_time() - start, 2))
    for number in range(20):
        with open(folder / "history.jsonl", "a") as f:  # the run goes on
            f.write(json.dumps({"round": rounds, "client": None, "metric": "note", "value": number}) + "\n")
        start = time.process_time()
        feed.now()
        later.append(round(time.process_time() - start, 2))
    return {
        "rounds": rounds,
        "first_seconds": took[0],
        "slowest_seconds": max(took),
        "later_seconds": max(later),
    }


PARTS: dict[str, Callable[[Path, bool], Found]] = {"kills": kills, "drops": drops, "fuzz": fuzz, "load": load}


# ---- the page
WAYS = {"run": "the run itself", "write": "inside a write", "worker": "a worker"}
MARK = "<!-- attacks: benchmarks/attacks.py -->", "<!-- /attacks -->"
HEAD = """\
# Reliability: what was tried, and what happened

Made by `python benchmarks/reliability.py`; the numbers are in [results/reliability](results/reliability). What fedkin
does when something goes wrong is in [engines.md](engines.md#what-goes-wrong-and-what-happens-then).
"""


def page() -> str:
    """The page, from what is stored. The part on attacks is another program's: it stays as it is."""
    parts = [HEAD]
    for name, write in (("kills", _kills_text), ("drops", _drops_text), ("fuzz", _fuzz_text)):
        if (STORED / f"{name}.json").exists():
            found = json.loads((STORED / f"{name}.json").read_text())
            parts.append(write(found) + (f"\nNote: {found['note']}\n" if "note" in found else ""))
    parts.append(f"## Hostile clients\n\n{_between(PAGE.read_text() if PAGE.exists() else '')}\n")
    if (STORED / "load.json").exists():
        parts.append(_load_text(json.loads((STORED / "load.json").read_text())))
    return "\n".join(parts)


def _between(text: str) -> str:
    start, end = text.find(MARK[0]), text.find(MARK[1])
    return text[start : end + len(MARK[1])] if 0 <= start < end else f"{MARK[0]}\nNot measured yet.\n{MARK[1]}"


def _kills_text(found: Found) -> str:
    methods = found["methods"]
    total = sum(count[way] for count in methods.values() for way in WAYS)
    runs = sum(count["runs"] for count in methods.values())
    rows = [[name, *(str(count[way]) for way in WAYS), str(count["runs"])] for name, count in methods.items()]
    return (
        f"## Kills\n\n{total} times SIGKILL at a random instant, in {runs} runs ({found['date']}). Each run was "
        f"started again until it ended. {runs} of {runs} ended with the same bits as the run never killed: history, "
        f"summary and models. {_settings(found)}\n\n"
        + markdown(["method", *(f"killed: {text}" for text in WAYS.values()), "runs"], rows)
        + "\nFull disks, read-only folders and damaged checkpoints: `tests/engine/test_storage.py`, "
        "`tests/engine/test_disks.py`.\n"
    )


def _settings(found: Found) -> str:
    settings = found["settings"]
    return (
        f"{found['clients']['clients']} clients, {settings['rounds']} rounds, a checkpoint every "
        f"{settings['checkpoint_every']} rounds, {settings['workers']} workers, `--faults {settings['faults']}`."
    )


def _drops_text(found: Found) -> str:
    rows = []
    for name, plans in found["methods"].items():
        mean = {plan: 100 * sum(r["personal"] for r in runs) / len(runs) for plan, runs in plans.items()}
        lost = [sum(r["dropped"] for r in plans[plan]) for plan in ("drop", "mixed")]
        bad = sum(r["quarantined"] for r in plans["mixed"])
        rows.append([name, *(f"{mean[plan]:.1f}" for plan in PLANS), *map(str, lost), str(bad)])
    header = ["method", "clean", "30 % lost", "mixed", "replies dropped: 30 % lost", "mixed", "of them quarantined"]
    return (
        f"## Unreliable clients\n\nMean personal accuracy in %, {found['seeds']} seeds, {found['rounds']} rounds, "
        f"digits, {found['clients']['clients']} clients, Dirichlet {found['clients']['alpha']} ({found['date']}). "
        f"30 % lost: `--faults {found['plans']['drop']}`; mixed: `--faults {found['plans']['mixed']}`. Every run "
        "ended with all clients measured. Clients have some 18 test examples each and there are few seeds, so "
        "differences of a point or two mean nothing.\n\n" + markdown(header, rows)
    )


def _fuzz_text(found: Found) -> str:
    targets = found["targets"].values()
    total = sum(t.get("worked", 0) + t.get("refused", 0) for t in targets)
    rows = [
        [
            t["about"] + (" *" if t.get("earlier") else ""),
            str(t.get("worked", 0) + t.get("refused", 0)),
            str(t.get("worked", 0)),
            str(t.get("refused", 0)),
        ]
        for t in targets
    ]
    return (
        f"## Bad input\n\n{total} random cases ({found['date']}). Each worked, or was refused with a message and exit "
        "code 2. In none was there a traceback, a pickle, or a file changed outside the case's folder. "
        "`tests/fuzz` has the targets; 500 cases are part of `make test`.\n\n"
        + markdown(["target", "cases", "worked", "refused"], rows)
        + ("\n\\* Measured earlier than the others.\n" if any(t.get("earlier") for t in targets) else "")
    )


def _load_text(found: Found) -> str:
    """One line for each thing that was measured."""
    lines = []
    if "rounds" in found:
        one = found["rounds"]
        memory, handles = (", ".join(map(str, one[key])) for key in ("megabytes", "handles"))
        lines.append(
            f"- {one['rounds']} rounds: {memory} MB after each quarter; in the last quarter "
            f"{one['slope_megabytes_per_100_rounds']} MB in 100 rounds. Open files: {handles}."
        )
    if "history" in found:
        (short, long), (first, second) = found["history"]["rounds"], found["history"]["seconds"]
        lines.append(f"- A history of {short} rounds is read in {first} s, one of {long} rounds in {second} s.")
    if "clients" in found:
        one = found["clients"]
        lines.append(
            f"- {one['clients']} clients, 1 % in each of 5 rounds, {one['measured']} measured at the end: "
            f"{one['seconds']} s, peak memory {one['peak_megabytes']} MB."
        )
    if "sites" in found:
        one = found["sites"]
        lines.append(
            f"- Requests to {one['sites']} sites and their answers over Flower's bytes, {one['megabytes']} MB: "
            f"{one['seconds']} s; the sum of the answers is {'exact' if one['exact'] else 'WRONG'}."
        )
    if "watch" in found:
        one = found["watch"]
        lines.append(
            f"- `watch` on {one['rounds']} rounds: the first answer takes {one['first_seconds']} s of processor time, "
            f"the slowest until all is read {one['slowest_seconds']} s, the slowest while the run goes on after that "
            f"{one['later_seconds']} s."
        )
    dates = sorted({one["date"] for one in found.values() if isinstance(one, dict)})
    return f"## Load\n\nMeasured on a machine with other work to do ({', '.join(dates)}).\n\n" + "\n".join(lines) + "\n"


def _store(part: str, found: Found) -> None:
    STORED.mkdir(parents=True, exist_ok=True)
    about = {"fedkin": fedkin.__version__, "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}
    if ONLY and part in ("kills", "drops"):
        about["note"] = f"{', '.join(ONLY)}: measured on {about['date']}."
        about["date"] = json.loads((STORED / f"{part}.json").read_text())["date"]
    (STORED / f"{part}.json").write_text(json.dumps({**found, **about}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--quick", action="store_true", help="a few cases of each part, to see that they work")
    parser.add_argument(
        "--only", nargs="*", default=[], help="targets of fuzz, methods of kills and drops; by default all"
    )
    flags = parser.parse_args()
    ONLY.extend(flags.only)
    torch.set_num_threads(1)  # a copy of a process must not wait for threads that were not copied
    for part in flags.parts:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fedkin-reliability-") as folder:
            found = PARTS[part](Path(folder), flags.quick)
        if not flags.quick:
            _store(part, {**found, "seconds": round(time.monotonic() - start)})
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
