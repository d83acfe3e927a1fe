"""What honest clients keep: attack × defense × method on digits, as a page of the docs.

    python benchmarks/attacks.py [--only METHOD ...] [--again]
    python benchmarks/attacks.py --backdoor-seeds 3

Each run is stored in docs/results/attacks.json when it is done, and the page is made from what is stored: a start goes
on where the last one ended. With --again the runs of these methods are made anew. The second form prints, and does not
store, how often the backdoor opens in FedAvg and kin for several seeds, and the weight of the hostile clients in what
an honest client of kin receives in the last round.

A fifth of ten clients is hostile. The numbers are the mean personal accuracy of the eight honest clients after the
last round, one seed; for `backdoor` also how many of their test examples with the trigger are taken for the
attacker's class. Under `none` nobody is hostile: what the same eight clients have, and what the trigger does to models
without a backdoor.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from statistics import mean

import torch

import fedkin
from fedkin.robust.attacks import TARGET, Attack, triggered

FRACTION = 0.2
METHODS = ("fedavg", "fedcedar", "pflic", "pfedgat", "dcpfl", "kin")
ATTACKS = ("", "scale:0.2", "signflip:0.2:5", "noise:0.2", "freerider:0.2", "labelflip:0.2", "backdoor:0.2")
DEFENSES = ("", "normbound", "median", "trimmed", "krum", "multikrum")
SEEDS = 1
ROUNDS = 30  # DC-PFL, which splits in round 10 at the earliest, needs more than 12 to act
PAGE = Path(__file__).parents[1] / "docs" / "results" / "attacks.md"
MARK = "<!-- findings -->", "<!-- /findings -->"
Cells = dict[str, list[dict[str, float]]]
"""What was measured in the runs of a cell, seed by seed."""


def measured(method: str, fed: fedkin.Federation, attack: str, defense: str, seed: int) -> dict[str, float]:
    """Accuracy of the honest clients, how often the backdoor opens, and how many groups DC-PFL has at the end."""
    hostile = Attack("none", FRACTION, 0).hostile(len(fed), seed)
    honest = [client for client in range(len(fed)) if client not in hostile]
    trigger = not attack or attack.startswith("backdoor")
    run = fedkin.run(
        method, fed, attack=attack, defend=defense, rounds=ROUNDS, lr=0.05, seed=seed, engine="serial",
        evaluate_every=0, save_models=trigger,
    )  # fmt: skip
    assert not attack or run.summary["hostile"] == hostile
    accuracy = run.history.values("personal", round=ROUNDS)
    out = {"accuracy": sum(accuracy[client] for client in honest) / len(honest)}
    if trigger:
        opened, tried = 0, 0
        for client in honest:
            x, y = fed.test(client)
            scores = run.predict_scores(client, triggered(x[y != TARGET]))
            opened, tried = opened + int((scores.argmax(1) == TARGET).sum()), tried + len(scores)
        out["opened"] = opened / tried
    if method == "kin":
        mixing = run.method.mixing(run.state)
        out["hostile_weight"] = float(mixing[honest][:, hostile].sum(1).mean())
    if groups := list(run.history.select("group_count")):
        out["groups"] = groups[-1].value
    return out


def backdoors(seeds: int) -> None:
    """Print what the page's findings say about the backdoor over several seeds."""
    for method, defense, seed in itertools.product(("fedavg", "kin"), ("", "median", "trimmed"), range(seeds)):
        fed = digits(seed)
        found, hostile_weight = measured(method, fed, "backdoor:0.2", defense, seed), ""
        if "hostile_weight" in found:
            hostile_weight = f", hostile clients have {100 * found['hostile_weight']:.0f} % of the weight"
        print(f"{_key(method, 'backdoor', defense)}, seed {seed}: {_cell([found])}{hostile_weight}", flush=True)


def digits(seed: int) -> fedkin.Federation:
    return fedkin.federate("digits", clients=10, partition="dirichlet", alpha=0.5, seed=seed)


def page(cells: Cells, findings: str) -> str:
    runs = sum(map(len, cells.values()))
    whole = len(METHODS) * len(ATTACKS) * len(DEFENSES) * SEEDS
    groups = [run["groups"] for found in cells.values() for run in found if "groups" in run]
    out = [
        "# Attacks and defenses",
        "",
        "Made by `python benchmarks/attacks.py`: scikit-learn's digits, 10 clients with "
        f"unlike labels (Dirichlet 0.5), {ROUNDS} rounds of one epoch, one seed. Two clients are hostile. A cell "
        "is the mean personal accuracy of the eight honest clients in %. With `backdoor`, the number after the slash "
        "is the percentage of their test examples with the trigger that are taken for the attacker's class. Under "
        "`none` nobody is hostile, and that number is what the trigger does to models without a backdoor. "
        "`signflip` is five times as long as the honest update; the others have their default strength.",
        "",
        f"{runs} runs{'' if runs == whole else f' of {whole}; a dash was not run'}. One seed: "
        "differences of a few points mean nothing. DC-PFL ended with more than one group in "
        f"{sum(count > 1 for count in groups)} of its {len(groups)} runs.",
        "",
        findings,
    ]
    for method in METHODS:
        names = ["none", *(attack.split(":")[0] for attack in ATTACKS[1:])]
        out += ["", f"## {method}", "", f"| defense | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for defense in DEFENSES:
            row = [_cell(cells.get(_key(method, attack, defense), [])) for attack in ATTACKS]
            out.append(f"| {defense or 'none'} | {' | '.join(row)} |")
    return "\n".join(out) + "\n"


def _key(method: str, attack: str, defense: str) -> str:
    return f"{method} {attack.split(':')[0] or 'none'} {defense or 'none'}"


def _cell(runs: list[dict[str, float]]) -> str:
    if not runs:
        return "–"
    names = ("accuracy", "opened") if "opened" in runs[0] else ("accuracy",)
    return " / ".join(f"{100 * mean(run[name] for run in runs):.0f}" for name in names)


def _findings(text: str) -> str:
    """What somebody wrote about the table: it stays."""
    start, end = text.find(MARK[0]), text.find(MARK[1])
    return text[start : end + len(MARK[1])] if 0 <= start < end else "\n".join(MARK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=METHODS, default=METHODS, help="methods; by default all")
    parser.add_argument("--again", action="store_true", help="measure what is stored anew")
    parser.add_argument("--backdoor-seeds", type=int, metavar="N", help="print the backdoor's numbers for N seeds")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    if flags.backdoor_seeds:
        backdoors(flags.backdoor_seeds)
        return
    stored = PAGE.with_suffix(".json")
    cells: Cells = json.loads(stored.read_text()) if stored.exists() else {}
    if flags.again:
        cells = {key: runs for key, runs in cells.items() if key.split()[0] not in flags.only}
    for seed in range(SEEDS):
        fed = digits(seed)
        for method, defense, attack in itertools.product(flags.only, DEFENSES, ATTACKS):
            runs = cells.setdefault(_key(method, attack, defense), [])
            if len(runs) == seed:
                runs.append(measured(method, fed, attack, defense, seed))
                stored.write_text(json.dumps(cells, indent=1) + "\n")
                print(f"{_key(method, attack, defense)}, seed {seed}: {_cell(runs[-1:])}", flush=True)
    PAGE.write_text(page(cells, _findings(PAGE.read_text() if PAGE.exists() else "")))


if __name__ == "__main__":
    main()
