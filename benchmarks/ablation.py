"""What each part of `kin` is worth, on the leaderboard's tracks.

    python benchmarks/ablation.py [--tracks fashion-iid,har-natural] [--out runs/ablation]

Leaving out an expert does not change what is trained, except that `own` is then not trained. So each track and seed
takes four runs (relation chosen, kin, mean, and by layers), and the variants are measured on their saved personal
models: the weights of the remaining experts are found again on the validation examples. Finished runs are not repeated.
The learning rate is 0.1 everywhere. Seeds are 10 and up: the leaderboard's are not looked at.

Results are kept in docs/results/kin.json, and docs/methods/kin.md has the tables between its <!-- ablation --> marks;
tests/experiments/test_pages.py holds the page against the file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from kin_layers import LayerKin

from fedkin.data.federation import Federation
from fedkin.engine.loop import run
from fedkin.experiments.bench import TRACKS
from fedkin.experiments.carry_out import _federation, setting_key
from fedkin.experiments.declare import Setting
from fedkin.methods.kin import EXPERTS, Kin
from fedkin.report.tables import markdown
from fedkin.results.run import Run, load
from fedkin.results.verdict import judge

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "results" / "kin.json", DOCS / "methods" / "kin.md"
CHOICE = ("fashion-dirichlet", "fashion-pathological", "fashion-iid", "har-natural", "heart-natural")
"""The tracks that kin was designed on. It had not seen the others when it was frozen."""
LR, FIRST_SEED, SEEDS = 0.1, 10, 3
PRIORS = (0.5, 40.0)
WHOLE = "kin"


def variants() -> Iterator[tuple[str, Kin]]:
    """Label to method; `relation` names the run whose personal models are measured."""
    yield WHOLE, Kin()
    yield "always the mean", Kin(relation="mean")
    yield "always the mixture of kin", Kin(relation="kin")
    yield "a relation for each layer", LayerKin()
    for left_out in EXPERTS:
        yield f"without {left_out}", Kin(experts=tuple(e for e in EXPERTS if e != left_out))
    for prior in PRIORS:
        yield f"prior {prior:g} instead of {Kin().prior:g}", Kin(prior=prior)
    yield "kin-lite", Kin(relation="mean", experts=tuple(e for e in EXPERTS if e != "own"))


def trained(setting: Setting, federation: Federation, seed: int, method: Kin, folder: Path) -> Run:
    if not (folder / "summary.json").exists():
        run(
            method, federation, model=setting.model, model_options={"width": setting.width}, out=folder,
            engine="serial", seed=seed, rounds=setting.rounds, participation=setting.participation, lr=LR,
            epochs=setting.epochs, batch_size=setting.batch_size, evaluate_every=0,
        )  # fmt: skip
    return load(folder)


@torch.no_grad()
def measured(method: Kin, found: Run, federation: Federation) -> list[float]:
    """Accuracy of each client's mixture, with the weights that this variant would have found."""
    out = []
    net = found._network()
    for i, name in enumerate(found.clients):
        client = found._client(net, federation.data(i))
        model = found._tensors(name)
        model = {**model, "weights": method._expert_weights(client, model)}
        x, y = federation.test(i)
        out.append(round(float((method.predict(client, model, x).argmax(1) == y).float().mean()), 5))
    return out


def results(tracks: list[str], out: Path) -> dict[str, dict[str, list[list[float]]]]:
    """Track to variant to accuracies [seeds, clients]."""
    torch.set_num_threads(1)
    done = stored()
    for track in tracks:
        setting = replace(TRACKS[track].setting, lr=LR)
        missing = {label: method for label, method in variants() if label not in done.get(track, {})}
        table: dict[str, list[list[float]]] = {label: [] for label in missing}
        for seed in range(FIRST_SEED, FIRST_SEED + SEEDS) if missing else ():
            federation = _federation(setting_key(setting), seed)
            runs: dict[str, Run] = {}
            for label, method in missing.items():
                name = "layers" if isinstance(method, LayerKin) else method.relation
                if name not in runs:
                    # all experts: leaving one out is measured on the same models
                    whole = LayerKin() if isinstance(method, LayerKin) else Kin(relation=method.relation)
                    runs[name] = trained(setting, federation, seed, whole, out / track / name / f"seed-{seed}")
                table[label].append(measured(method, runs[name], federation))
        done[track] = done.get(track, {}) | table
        lines = [f'"{name}":{json.dumps(table, separators=(",", ":"))}' for name, table in done.items()]
        RESULTS.write_text("{" + ",\n".join(lines) + "}\n")
        print(f"{track}: {np.mean(done[track][WHOLE]):.4f}", flush=True)
    return done


def stored() -> dict[str, dict[str, list[list[float]]]]:
    found: dict[str, dict[str, list[list[float]]]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def page(found: dict[str, dict[str, list[list[float]]]]) -> str:
    """A table for the tracks of the choice and one for the others; differences to kin, with 95 % intervals."""
    parts = []
    for title, tracks in (
        ("Tracks that it was designed on", [t for t in found if t in CHOICE]),
        ("Tracks that it had not seen", [t for t in found if t not in CHOICE]),
    ):
        if not tracks:
            continue
        rows = [[f"**{WHOLE}**", *(f"{100 * np.mean(found[t][WHOLE]):.2f} %" for t in tracks)]]
        for label, _ in variants():
            if label == WHOLE:
                continue
            cells = []
            for track in tracks:
                if label not in found[track]:
                    cells.append("–")
                    continue
                verdict = judge(found[track][label], found[track][WHOLE], redrawn=TRACKS[track].setting.redrawn)
                mean, low, high = (100 * (value or 0.0) for value in (verdict.mean, verdict.low, verdict.high))
                text = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"
                cells.append(f"**{text}**" if verdict.word in ("above", "below") else text)
            rows.append([label, *cells])
        parts.append(f"### {title}\n\n{markdown(['variant', *tracks], rows)}")
    return "\n\n".join(parts)


def written(page_text: str, found: dict[str, dict[str, list[list[float]]]]) -> str:
    """The method's page with these tables between its marks."""
    before, mark, rest = page_text.partition("<!-- ablation -->\n")
    return f"{before}{mark}\n{page(found)}\n{rest[rest.index('<!-- /ablation -->') :]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracks", default=",".join(TRACKS))
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    given = parser.parse_args()
    found = results(given.tracks.split(","), given.out)
    print(page(found))
    PAGE.write_text(written(PAGE.read_text(), found))


if __name__ == "__main__":
    main()
