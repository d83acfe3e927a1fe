"""`fedkin compare METHOD METHOD …`: several methods on the same clients, over seeds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from fedkin.cli import config as configs
from fedkin.cli import flags as parsing
from fedkin.cli import settings
from fedkin.cli.flags import UserError

if TYPE_CHECKING:
    from fedkin.results.comparison import Comparison

ABOUT = """\
Run several methods on the same clients, over seeds, and compare each client with training alone (add the method
`local`).

METHOD is a name from `fedkin list methods`, or your own as file.py:Class. A method's fields follow its name:

fedkin compare local fedavg fedprox,mu=0.1 fedprox,mu=1

Settings of the training may follow, too, for this method only: ditto,lr=0.1"""

# Where the terminal is too narrow, the last of these are left out; --wide shows all.
IMPORTANCE = (
    "method",
    "personal",
    "gain over local",
    "95 % interval",
    "validation",
    "worst 10 %",
    "gain/lose",
    "received",
    "bytes/round",
    "p",
    "std",
    "simulated",
)


MOST_SHOWN = 20  # clients in the terminal; comparison.md and clients.csv have all


@dataclass(frozen=True)
class CompareFlags:
    seeds: int = 1
    """Number of runs of each method. Each seed, from --seed on, draws new data, initial models and batches."""


@dataclass(frozen=True)
class TableFlags:
    name: tuple[str, ...] = ()
    """Labels in tables and figures, one for each METHOD; by default the methods as given."""
    wide: bool = False
    """Show all columns of the table, however wide it gets."""
    format: Literal["table", "md", "csv", "latex", "clients-csv", "clients-latex"] = "table"
    """Print tables for the terminal, or Markdown, or one table as CSV or LaTeX (booktabs): the methods, or each method
    at each client."""


def command(words: list[str]) -> int:
    names, rest = parsing.split_words(words)
    config = configs.read(rest)
    names = names or list(config.methods)
    from fedkin.methods import method, split_training

    for label in names:  # every name and field is checked before anything is read, written or removed
        method(split_training(label)[0])
    flags, extra = parsing.parse(
        rest,
        settings.parts(rest, config, run=CompareFlags(), output=TableFlags()),
        "fedkin compare METHOD METHOD …",
        ABOUT,
        config.values,
    )
    if extra:
        raise UserError(f"'{extra[0]}' is not expected here: all METHODs come first, then flags with their values.")
    if not names:
        raise UserError("compare needs at least one METHOD, such as: fedkin compare local fedavg fedprox,mu=0.1")
    if flags.own_run.seeds < 1:
        raise UserError(f"--seeds {flags.own_run.seeds}: at least one seed is needed.")
    _check_labels(names, flags.own_output.name)
    made = run(names, flags)
    if flags.output.json:
        print(json.dumps(made.to_json(), indent=2))
        return 0
    if flags.own_output.format != "table":
        print(formatted(made, flags.own_output.format), end="")
        return 0
    show(made, wide=flags.own_output.wide)
    show_sites(made, wide=flags.own_output.wide)
    out = flags.output.out
    if out is None:
        print("Nothing was kept: add --out DIR to keep the runs, the tables and a report.")
    else:
        tables = "comparison.md, .csv and .tex" + (", clients.csv and .tex" if made.sites else "")
        print(f"The runs and {tables} are in {out}. To see them: fedkin report {out}")
    return 0


def _check_labels(names: list[str], labels: tuple[str, ...]) -> None:
    if labels and len(labels) != len(names):
        raise UserError(f"--name needs a label for each METHOD, {len(names)} in all; given: {len(labels)}.")
    if len(set(labels)) < len(labels):
        raise UserError("--name: give each METHOD a label of its own.")
    if any(label == "local" != name.split(",")[0] for name, label in zip(names, labels)):
        raise UserError("--name: only the method 'local' can have the label 'local', against which gains are measured.")


def run(names: list[str], flags: Any) -> Comparison:
    from rich.console import Console

    from fedkin.methods import split_training
    from fedkin.report.words import partition_words
    from fedkin.results.compare import compare

    options = flags.options
    federation = settings.federation(flags, options.seed)
    chosen = ", ".join(f"{k}={v}" for k, v in settings.chosen(flags, "partition").items())
    about = (
        f"{flags.data.data}, {partition_words(federation.description['partition'])}{f' ({chosen})' if chosen else ''}, "
        f"clients {len(federation)}, rounds {options.rounds}, participation {options.participation:g}, "
        f"lr {flags.training.lr:g}, epochs {flags.training.epochs}, batch {flags.training.batch_size}, "
        f"seeds {flags.own_run.seeds}"
    )
    for name, label in zip_longest(names, flags.own_output.name):
        if own := ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in split_training(name)[1].items()):
            about += f"; {label or split_training(name)[0]} with {own}"
    if federation.mean_kld is not None:
        about += f"; mean pairwise KLD {federation.mean_kld:.2f}"
    with settings.ray_cluster(options.engine == "ray", options.ray_address, options.workers):
        return compare(
            names,
            lambda seed: federation if seed == options.seed else settings.federation(flags, seed),
            seeds=flags.own_run.seeds,
            first_seed=options.seed,
            out=flags.output.out,
            names=dict(zip(names, flags.own_output.name)),
            setting=about,
            tracker=lambda label: settings.trackers(flags.output, label, Console(stderr=True)),
            model=flags.model.model,
            model_options=settings.chosen(flags, "model"),
            head=flags.model.head,
            task=settings.task(flags),
            training=flags.training,
            options=options,
            fresh=flags.output.fresh,
        )


def show(made: Comparison, *, wide: bool) -> None:
    """The table, best first."""
    from fedkin.cli.terminal import console, fitting
    from fedkin.report.tables import terminal

    sign = 1 if made.higher_is_better else -1
    best = sign * max(sign * line.personal for line in made.lines)
    order = sorted(zip(made.lines, made.rows), key=lambda pair: -sign * pair[0].personal)
    rows = [[f"{row[0]} *" if line.personal == best else row[0], *row[1:]] for line, row in order]
    screen = console(1000 if wide else None)
    importance = [next(h for h in made.header if h in (name, f"{name} %")) for name in IMPORTANCE]
    if not wide:
        empty = {name for name, *cells in zip(made.header, *rows) if set(cells) == {"–"}}
        importance = [name for name in importance if name not in empty]
    header, rows = fitting(made.header, rows, importance, 1000 if wide else screen.width)
    which = (
        f"personal: {made.metric} of the model that each client uses, on its own test examples, after the last round"
    )
    direction = "the best mean" if made.higher_is_better else "the best mean (lower is better)"
    notes = [made.setting, which, f"* {direction}", *made.notes]
    if made.reference not in [line.method for line in made.lines]:
        notes.append("Add the method 'local' to see each client's gain over training alone")
    if len(header) < len(importance):
        left_out = [h for h in made.header if h in importance and h not in header]
        notes.append(f"Not shown: {', '.join(left_out)}; --wide shows all")
    table = terminal("Comparison", header, rows, "\n".join(notes))
    for i, row in enumerate(rows):
        if row[0].endswith(" *"):
            table.rows[i].style = "bold"
    if wide:
        screen.width = max(screen.width, screen.measure(table).maximum)
    screen.print(table)


def show_sites(made: Comparison, *, wide: bool) -> None:
    """Each method at each client, and what each client should use. Clients without names of their own are counted."""
    from fedkin.cli.terminal import console
    from fedkin.report import tables
    from fedkin.results.sites_tables import cell, is_best

    sites = made.sites
    if not sites:
        print("The clients differ from seed to seed, so there is no answer for each client.")
        return
    if not made.named or len(sites) > MOST_SHOWN:
        better = sum(site.use != made.reference for site in sites)
        if any(line.method == made.reference for line in made.lines):
            print(f"A method is shown to be better than training alone at {better} of {len(sites)} clients.")
        return
    unit = " %" if made.percent else ""
    header = [f"{made.metric}{unit}", *(f"{site.name} (n={site.test_examples})" for site in sites)]
    rows = []
    for line in made.lines:
        marks = ["*" if is_best(made, site, line.method) else " " for site in sites]
        rows.append([line.method, *(f"{cell(made, site, line.method)} {m}" for site, m in zip(sites, marks))])
    if made.metric == "accuracy" and sites[0].majority_rate is not None:
        rows.append(["most frequent class", *(f"{100 * (site.majority_rate or 0):.2f}  " for site in sites)])
    note = "± standard error over the n test examples; * best on test. To choose, use the validation scores"
    tables.show(console(1000 if wide else None), "Which method at which client", header, rows, note, wide=wide)
    for site in sites:
        print(site.advice)


def formatted(made: Comparison, format: str) -> str:
    from fedkin.results import sites_tables

    if format == "md":
        return made.markdown()
    if not format.startswith("clients-"):
        return made.csv() if format == "csv" else made.latex()
    if not made.sites:
        kind = format.removeprefix("clients-")
        raise UserError(f"--format {format} lists clients, and these differ from seed to seed: use --format {kind}.")
    return sites_tables.csv(made) if format == "clients-csv" else sites_tables.latex(made)
