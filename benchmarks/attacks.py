"""What honest clients keep: attack × defense × method on digits, as a page of the docs.

    python benchmarks/attacks.py docs/results/attacks.md

A fifth of ten clients is hostile. The numbers are the mean personal accuracy of the eight honest clients after the
last round, one seed; for `backdoor` also how many of their test examples with the trigger are taken for the
attacker's class.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import fedkin
from fedkin.robust.attacks import TARGET, triggered

METHODS = ("fedavg", "fedcedar", "pflic", "pfedgat", "dcpfl", "kin")
ATTACKS = ("", "scale:0.2", "signflip:0.2:5", "noise:0.2", "freerider:0.2", "labelflip:0.2", "backdoor:0.2")
DEFENSES = ("", "normbound", "median", "trimmed", "krum", "multikrum")
ROUNDS = 12


def measured(method: str, fed: fedkin.Federation, attack: str, defense: str) -> tuple[float, float | None]:
    """Accuracy of the honest clients, and how often the backdoor opens."""
    backdoor = attack.startswith("backdoor")
    run = fedkin.run(
        method, fed, attack=attack, defend=defense, rounds=ROUNDS, lr=0.05, engine="serial", evaluate_every=0,
        save_models=backdoor,
    )  # fmt: skip
    accuracy = run.summary["honest" if attack else "personal"]["mean"]
    if not backdoor:
        return accuracy, None
    opened, tried = 0, 0
    for client in set(range(len(fed))) - set(run.summary["hostile"]):
        x, y = fed.test(client)
        scores = run.predict_scores(client, triggered(x[y != TARGET]))
        opened, tried = opened + int((scores.argmax(1) == TARGET).sum()), tried + len(scores)
    return accuracy, opened / tried


def page(rows: dict[tuple[str, str, str], tuple[float, float | None]], seconds: float) -> str:
    out = [
        "# Attacks and defenses",
        "",
        "Made by `python benchmarks/attacks.py docs/results/attacks.md`: scikit-learn's digits, 10 clients with "
        f"unlike labels (Dirichlet 0.5), {ROUNDS} rounds of one epoch, one seed. Two clients are hostile. A cell is "
        "the mean personal accuracy of the eight honest clients in %. With `backdoor`, the number after the slash is "
        "the percentage of their test examples with the trigger that are taken for the attacker's class. "
        "`signflip` is five times as long as the honest update; the others have their default strength.",
        "",
        f"{len(rows)} runs in {seconds / 60:.0f} minutes. One seed: differences of a few points mean nothing. A dash "
        "was not run.",
    ]
    for method in METHODS:
        names = ["none", *(attack.split(":")[0] for attack in ATTACKS[1:])]
        out += ["", f"## {method}", "", f"| defense | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for defense in DEFENSES:
            cells = [_cell(*rows.get((method, attack, defense), (None, None))) for attack in ATTACKS]
            out.append(f"| {defense or 'none'} | {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def _cell(accuracy: float | None, opened: float | None) -> str:
    if accuracy is None:
        return "–"  # not run
    return f"{100 * accuracy:.0f}" + ("" if opened is None else f" / {100 * opened:.0f}")


def main(path: str) -> None:
    torch.set_num_threads(1)
    fed = fedkin.federate("digits", clients=10, partition="dirichlet", alpha=0.5, seed=0)
    start = time.time()
    rows = {}
    for method in METHODS:
        for defense in DEFENSES:
            for attack in ATTACKS:
                rows[method, attack, defense] = measured(method, fed, attack, defense)
                print(
                    f"{method:9} {attack or 'none':15} {defense or 'none':10} {rows[method, attack, defense]}",
                    flush=True,
                )
    Path(path).write_text(page(rows, time.time() - start))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/results/attacks.md")
