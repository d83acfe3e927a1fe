"""What honest clients keep: attack × defense × method on digits, as a page of the docs.

    python benchmarks/attacks.py [--only METHOD ...] [--again]

Each cell is stored in docs/results/attacks.json when it is measured, and the page is made from what is stored: a start
goes on where the last one ended. With --again the cells of these methods are measured anew.

A fifth of ten clients is hostile. The numbers are the mean personal accuracy of the eight honest clients after the
last round, one seed; for `backdoor` also how many of their test examples with the trigger are taken for the
attacker's class.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import torch

import fedkin
from fedkin.robust.attacks import TARGET, triggered

METHODS = ("fedavg", "fedcedar", "pflic", "pfedgat", "dcpfl", "kin")
ATTACKS = ("", "scale:0.2", "signflip:0.2:5", "noise:0.2", "freerider:0.2", "labelflip:0.2", "backdoor:0.2")
DEFENSES = ("", "normbound", "median", "trimmed", "krum", "multikrum")
ROUNDS = 12
PAGE = Path(__file__).parents[1] / "docs" / "results" / "attacks.md"
MARK = "<!-- findings -->", "<!-- /findings -->"


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


def page(cells: dict[str, str], findings: str) -> str:
    out = [
        "# Attacks and defenses",
        "",
        "Made by `python benchmarks/attacks.py`: scikit-learn's digits, 10 clients with "
        f"unlike labels (Dirichlet 0.5), {ROUNDS} rounds of one epoch, one seed. Two clients are hostile. A cell is "
        "the mean personal accuracy of the eight honest clients in %. With `backdoor`, the number after the slash is "
        "the percentage of their test examples with the trigger that are taken for the attacker's class. "
        "`signflip` is five times as long as the honest update; the others have their default strength.",
        "",
        f"{len(cells)} runs. One seed: differences of a few points mean nothing."
        + (" A dash was not run." if len(cells) < len(METHODS) * len(ATTACKS) * len(DEFENSES) else ""),
        "",
        findings,
    ]
    for method in METHODS:
        names = ["none", *(attack.split(":")[0] for attack in ATTACKS[1:])]
        out += ["", f"## {method}", "", f"| defense | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for defense in DEFENSES:
            row = [cells.get(_key(method, attack, defense), "–") for attack in ATTACKS]
            out.append(f"| {defense or 'none'} | {' | '.join(row)} |")
    return "\n".join(out) + "\n"


def _key(method: str, attack: str, defense: str) -> str:
    return f"{method} {attack.split(':')[0] or 'none'} {defense or 'none'}"


def _cell(accuracy: float, opened: float | None) -> str:
    return f"{100 * accuracy:.0f}" + ("" if opened is None else f" / {100 * opened:.0f}")


def _findings(text: str) -> str:
    """What somebody wrote about the table: it stays."""
    start, end = text.find(MARK[0]), text.find(MARK[1])
    return text[start : end + len(MARK[1])] if 0 <= start < end else "\n".join(MARK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=METHODS, default=METHODS, help="methods; by default all")
    parser.add_argument("--again", action="store_true", help="measure what is stored anew")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    fed = fedkin.federate("digits", clients=10, partition="dirichlet", alpha=0.5, seed=0)
    stored = PAGE.with_suffix(".json")
    cells: dict[str, str] = json.loads(stored.read_text()) if stored.exists() else {}
    for method, defense, attack in itertools.product(flags.only, DEFENSES, ATTACKS):
        key = _key(method, attack, defense)
        if flags.again or key not in cells:
            cells[key] = _cell(*measured(method, fed, attack, defense))
            stored.write_text(json.dumps(cells, indent=1) + "\n")
            print(f"{key}: {cells[key]}", flush=True)
    PAGE.write_text(page(cells, _findings(PAGE.read_text() if PAGE.exists() else "")))


if __name__ == "__main__":
    main()
