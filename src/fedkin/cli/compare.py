"""`fedkin compare METHOD METHOD …`: several methods on the same clients, over seeds."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fedkin.cli import flags as parsing
from fedkin.cli.flags import Setting


@dataclass(frozen=True)
class Compared:
    seeds: int = 1
    """Runs of each method, with seeds from --seed on; data, initial model and batches are drawn anew."""


def command(words: list[str]) -> int:
    names, rest = parsing.split_words(words)
    if not names:
        print("usage: fedkin compare METHOD METHOD … [flags]\n\nA method's options follow its name: fedprox,mu=0.1")
        if not {"-h", "--help"} & set(rest):
            return 2
    from rich.console import Console

    from fedkin.cli.terminal import console
    from fedkin.methods import method
    from fedkin.report.tables import terminal
    from fedkin.results import comparison

    parts, prefixed = parsing.common(rest)
    parts = {"compared": (Compared, Compared()), **parts}
    flags = parsing.parse(
        rest, parts, prefixed, "fedkin compare METHOD …", "Several methods on the same clients, over seeds."
    )
    for label in names:  # every name and field is checked before anything is read, written or removed
        name, fields = comparison.parse(label)
        method(name, **fields)
    setting: Setting = flags.setting
    options = flags.options
    federation = parsing.federation(flags, options.seed)
    about = (
        f"{setting.data}, {federation.description['partition']} {parsing.chosen(flags, 'partition') or ''}, "
        f"{len(federation)} clients, {options.rounds} rounds, participation {options.participation:g}, "
        f"lr {flags.training.lr:g}, {flags.training.epochs} epochs, batch {flags.training.batch_size}, "
        f"{flags.compared.seeds} seeds; mean pairwise KLD {federation.mean_kld:.2f}"
    )
    with parsing.ray_cluster(options.engine == "ray", options.ray_address, options.workers):
        made = comparison.compare(
            names,
            lambda seed: federation if seed == options.seed else parsing.federation(flags, seed),
            seeds=flags.compared.seeds,
            first_seed=options.seed,
            out=setting.out,
            setting=about,
            tracker=lambda label: parsing.trackers(setting, label, Console(stderr=True)),
            model=setting.model,
            model_options=parsing.chosen(flags, "model"),
            head=setting.head,
            training=flags.training,
            options=options,
            fresh=setting.fresh,
        )
    if setting.json:
        print(json.dumps(made.to_json(), indent=2))
        return 0
    note = about + "\npersonal: the model each client uses, on its own test examples, after the last round"
    if comparison.REFERENCE not in names:
        note += "\nAdd the method 'local' to see each client's gain over training alone"
    console().print(terminal("Comparison", made.header, made.rows, note))
    if setting.out is not None:
        print(f"Runs, comparison.json and comparison.md are in {setting.out}. To see them: fedkin report {setting.out}")
    return 0
