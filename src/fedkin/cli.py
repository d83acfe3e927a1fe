"""The command `fedkin`. Flags are made from dataclass fields; torch is imported only when something runs."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

    from fedkin.data.federation import Federation
    from fedkin.engine.trackers import Tracker

HELP = """\
fedkin: personalized federated learning

  fedkin demo                        a small comparison on data that is at hand, in under a minute
  fedkin run METHOD [flags]          one run; `fedkin run METHOD --help` lists the flags of this method
  fedkin compare METHOD METHOD …     several methods on the same clients, over seeds
  fedkin report DIR [DIR …]          one page of runs or of a comparison: who learns from whom, who benefits
  fedkin watch DIR                   the same page while a run goes on
  fedkin figures DIR                 figures for papers: --format pdf, png or svg
  fedkin list [methods|datasets|partitions|models]
  fedkin reproduce PAPER/ITEM …      a table or figure of a paper, theirs against ours; --list names them
  fedkin bench                       our own leaderboard: all methods at one fixed budget
  fedkin cite METHOD …               BibTeX of the methods' papers
  fedkin verify [METHOD …]           check methods, built-in or yours (file.py:Class), against the contract
  fedkin deploy init|keys DIR        an app for real sites over Flower, and keys to try TLS with

A method's options in `compare` follow its name: fedkin compare local fedprox,mu=0.1 fedprox,mu=1
"""


class UserError(Exception):
    """Something the user can put right: shown without a stack trace."""


@dataclass(frozen=True)
class Setting:
    """Data, clients and output."""

    data: str = "digits"
    """Data set (see `fedkin list datasets`), or a folder with one .npz or .csv for each client."""
    data_dir: str | None = None
    """Folder of data files; also the variable FEDKIN_DATA."""
    partition: str = "dirichlet"
    """How rows are spread over clients (see `fedkin list partitions`)."""
    clients: int | None = None
    """How many clients; where not given: 20, or one for each natural group."""
    samples_per_client: int | None = None
    """At most so many rows for each client."""
    test: float = 0.2
    """Share of a client's rows to test on."""
    validation: float = 0.1
    """Share of a client's rows to choose by."""
    pool: Literal["all", "train"] = "all"
    """Spread all official rows, or only the official training part."""
    model: str = "auto"
    """Network (see `fedkin list models`), or your own as file.py:function; auto: the usual one for the data."""
    head: str | None = None
    """Name of the network's last layer, where it is not the last linear one."""
    out: Path | None = None
    """Folder for everything of this run; a stopped run goes on there."""
    fresh: bool = False
    """Start over in that folder."""
    json: bool = False
    """Print the summary as JSON and nothing else."""
    quiet: bool = False
    """No progress bar."""
    tensorboard: Path | None = None
    """Write metrics for TensorBoard to this folder."""
    mlflow: str | None = None
    """Log to this MLflow experiment."""
    wandb: str | None = None
    """Log to this Weights & Biases project."""


@dataclass(frozen=True)
class Compared:
    seeds: int = 1
    """Runs of each method, with seeds from --seed on; data, initial model and batches are drawn anew."""


@dataclass(frozen=True)
class Paged:
    out: Path | None = None
    """The page's file; by default report.html in the first folder."""


@dataclass(frozen=True)
class Watched:
    port: int = 8642
    """Port of the server, which only this machine can reach; another one where it is taken."""


@dataclass(frozen=True)
class Drawn:
    format: Literal["pdf", "png", "svg"] = "pdf"
    """Of the files."""
    out: Path | None = None
    """Folder of the files; by default figures/ in the first folder."""


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return
    if words[0] in ("--version", "-V"):
        import fedkin

        print(fedkin.__version__)
        return
    commands: dict[str, Callable[[list[str]], int]] = {
        "demo": demo,
        "run": run,
        "compare": compare,
        "report": report,
        "watch": watch,
        "figures": figures,
        "list": listing,
        "verify": verify,
        "cite": cite,
        "reproduce": reproduce,
        "bench": bench,
        "deploy": deploy,
    }
    try:
        if words[0] not in commands:
            raise UserError(f"There is no command '{words[0]}'. Known: {', '.join(commands)}.")
        code = commands[words[0]](words[1:])
    except KeyboardInterrupt:
        code = 130
        print("Stopped. The same command with the same --out goes on from the last checkpoint.", file=sys.stderr)
    except BrokenPipeError:  # `fedkin list | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except (UserError, ValueError, FileNotFoundError, ImportError) as error:
        code = 2
        print(f"fedkin: {error}", file=sys.stderr)
    sys.exit(code)


def _console() -> Console:
    from rich.console import Console

    made = Console()
    return made if made.is_terminal else Console(width=160)  # a pipe has no width: do not squeeze tables into 80


# ---- flags
def _given(words: list[str], flag: str, default: str) -> str:
    """The value of a flag that decides which other flags there are."""
    for i, word in enumerate(words):
        if word == f"--{flag}" and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(f"--{flag}="):
            return word.split("=", 1)[1]
    return default


def _options_of(target: Any, name: str) -> type | None:
    """A dataclass of the keyword options of a function or dataclass, for flags."""
    if dataclasses.is_dataclass(target):
        own = [(f.name, f.type, field(default=f.default)) for f in fields(target) if f.init]
    else:
        parameters = inspect.signature(target, eval_str=True).parameters.values()
        own = [
            (p.name, p.annotation, field(default=p.default))
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
        ]
    if not own:
        return None
    resolved = [(n, _evaluated(t, target), f) for n, t, f in own]
    return dataclasses.make_dataclass(f"{name.capitalize()}Options", resolved, frozen=True)


def _evaluated(annotation: Any, target: Any) -> Any:
    if isinstance(annotation, str):
        module = sys.modules[target.__module__]
        return eval(annotation, vars(module), {})
    return annotation


def _flags(words: list[str], parts: dict[str, Any], prefixed: dict[str, Any], prog: str, about: str) -> Any:
    """Parse words into an object with one attribute for each part; only `prefixed` ones keep their name in flags."""
    import tyro

    made: list[tuple[str, Any, Any]] = []
    for name, (kind, default) in parts.items():
        made.append((name, Annotated[kind, tyro.conf.arg(name="")], field(default=default)))
    for name, kind in prefixed.items():
        made.append((f"{name}_options", Annotated[kind, tyro.conf.arg(name=name)], field(default_factory=kind)))
    whole = dataclasses.make_dataclass("Flags", made, frozen=True)
    whole.__doc__ = about
    return tyro.cli(whole, args=words, prog=prog, config=(tyro.conf.FlagCreatePairsOff,))


def _common(words: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts of the flags that every run has, and those that depend on the data, partition and model named."""
    from fedkin.data import DATASETS
    from fedkin.data.partition import PARTITIONS
    from fedkin.engine.options import Options
    from fedkin.models import MODELS
    from fedkin.protocol import Training

    parts = {"setting": (Setting, Setting()), "training": (Training, Training()), "options": (Options, Options())}
    data, partition = _given(words, "data", "digits"), _given(words, "partition", "dirichlet")
    model = _given(words, "model", "auto")
    prefixed: dict[str, Any] = {}
    if data in DATASETS and (kind := _options_of(DATASETS[data].load(), "data")):
        prefixed["data"] = kind
    if partition in PARTITIONS and (kind := _options_of(PARTITIONS[partition], "partition")):
        prefixed["partition"] = kind
    if model == "auto":
        from fedkin.data import DEFAULT_MODEL

        model = DEFAULT_MODEL.get(data, "mlp")
    if model in MODELS and (kind := _options_of(MODELS[model].load(), "model")):
        prefixed["model"] = kind
    return parts, prefixed


def _chosen(flags: Any, name: str) -> dict[str, Any]:
    options = getattr(flags, f"{name}_options", None)
    return {} if options is None else dataclasses.asdict(options)


def _federation(flags: Any, seed: int) -> Federation:
    from fedkin.data import DATASETS, from_folder
    from fedkin.data.federation import federate

    setting: Setting = flags.setting
    data: Any = setting.data
    partition, options = setting.partition, _chosen(flags, "partition")
    if setting.data not in DATASETS and Path(setting.data).is_dir():
        data, partition, options = from_folder(setting.data), "by_group", {}
    return federate(
        data,
        partition=partition,
        clients=setting.clients,
        seed=seed,
        test=setting.test,
        validation=setting.validation,
        pool=setting.pool,
        samples_per_client=setting.samples_per_client,
        data_dir=setting.data_dir,
        data_options=_chosen(flags, "data"),
        **options,
    )


def _trackers(setting: Setting, label: str, console: Console) -> list[Tracker]:
    from fedkin.engine.progress import Terminal
    from fedkin.engine.trackers import MLflow, TensorBoard, WandB

    out: list[Tracker] = []
    if not setting.quiet:
        out.append(Terminal(label, console))
    if setting.tensorboard is not None:
        out.append(TensorBoard(setting.tensorboard / label.replace(", ", "-").replace(" ", "-")))
    if setting.mlflow is not None:
        out.append(MLflow(setting.mlflow))
    if setting.wandb is not None:
        out.append(WandB(setting.wandb))
    return out


def _ray(wanted: bool, address: str = "", workers: int = 0) -> contextlib.AbstractContextManager[None]:
    """One Ray cluster for several runs: its start takes seconds."""
    if not wanted:
        return contextlib.nullcontext()
    from fedkin.engine.ray import cluster

    return cluster(address, workers)


def _split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Leading names, and the flags after them."""
    at = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return words[:at], words[at:]


# ---- commands
def run(words: list[str]) -> int:
    from rich.console import Console

    names, rest = _split_words(words)
    if len(names) != 1:
        from fedkin.methods import METHODS

        if names:
            raise UserError(f"run takes one method, given: {' '.join(names)}. To compare several: fedkin compare.")
        print(f"usage: fedkin run METHOD [flags]\n\nMETHOD: {', '.join(METHODS)}, or your own as file.py:Class.")
        print("`fedkin run METHOD --help` lists the flags of the method, the data and the partition named.")
        return 0 if "--help" in rest or "-h" in rest else 2
    from fedkin.engine.loop import run as run_
    from fedkin.methods import method

    default = method(names[0])
    parts, prefixed = _common(rest)
    parts = {"method": (type(default), default), **parts}
    about = (inspect.getdoc(inspect.getmodule(type(default))) or "").split("\n\n")[0]
    flags = _flags(rest, parts, prefixed, f"fedkin run {names[0]}", about)
    setting: Setting = flags.setting
    federation = _federation(flags, flags.options.seed)
    result = run_(
        flags.method,
        federation,
        model=setting.model,
        model_options=_chosen(flags, "model"),
        head=setting.head,
        training=flags.training,
        out=setting.out,
        fresh=setting.fresh,
        label=names[0],
        trackers=_trackers(setting, names[0], Console(stderr=True)),
        options=flags.options,
    )
    if setting.json:
        print(json.dumps(result.summary, indent=2))
        return 0
    _show(names[0], result.summary, federation, _console())
    if setting.out is not None:
        print(f"Everything of this run is in {setting.out}. To see it: fedkin report {setting.out}")
    return 0


def _show(name: str, summary: dict[str, Any], federation: Federation, console: Console) -> None:
    from fedkin.report.tables import duration, percent, size, terminal

    rows = []
    for kind in ("personal", "received"):
        if kind in summary:
            s = summary[kind]
            rows.append(
                (kind, *(percent(s[k]) for k in ("mean", "weighted", "std", "worst_decile")), f"{s['jain']:.3f}")
            )
    if "chosen_by_validation" in summary:
        s = summary["chosen_by_validation"]
        label = f"personal, round {s['round']} (by validation)"
        rows.append((label, *(percent(s[k]) for k in ("mean", "weighted", "std", "worst_decile")), f"{s['jain']:.3f}"))
    time = summary["simulated_seconds"]
    told = (
        f"{summary['clients']} clients, {summary['rounds']} rounds, mean pairwise KLD {summary['mean_kld']:.2f}\n"
        f"{size(summary['bytes_down'])} down, {size(summary['bytes_up'])} up; simulated time {duration(time['total'])} "
        f"({duration(time['compute'])} compute, {duration(time['communication'])} communication)"
    )
    if summary["dropped"]:
        told += f"\n{summary['dropped']} replies were dropped: see 'dropped' in the history"
    if summary["sees_test"]:
        told += "\nThis method learned from test rows, as its paper does: these accuracies are optimiztic"
    header = ("accuracy %", "mean", "by rows", "std", "worst 10 %", "Jain")
    console.print(terminal(name, header, rows, told))


def compare(words: list[str]) -> int:
    names, rest = _split_words(words)
    if not names:
        print("usage: fedkin compare METHOD METHOD … [flags]\n\nA method's options follow its name: fedprox,mu=0.1")
        if not {"-h", "--help"} & set(rest):
            return 2
    from fedkin.results import comparison

    parts, prefixed = _common(rest)
    parts = {"compared": (Compared, Compared()), **parts}
    flags = _flags(rest, parts, prefixed, "fedkin compare METHOD …", "Several methods on the same clients, over seeds.")
    return _compare(names, flags, comparison, _console())


def _compare(names: list[str], flags: Any, comparison: Any, console: Console) -> int:
    from rich.console import Console

    setting: Setting = flags.setting
    options = flags.options
    if setting.fresh and setting.out is not None:
        import shutil

        for name in names:
            shutil.rmtree(setting.out / comparison.folder(name), ignore_errors=True)
    federation = _federation(flags, options.seed)
    about = (
        f"{setting.data}, {federation.description['partition']} {_chosen(flags, 'partition') or ''}, {len(federation)} "
        f"clients, {options.rounds} rounds, participation {options.participation:g}, lr {flags.training.lr:g}, "
        f"{flags.training.epochs} epochs, batch {flags.training.batch_size}, {flags.compared.seeds} seeds; "
        f"mean pairwise KLD {federation.mean_kld:.2f}"
    )
    with _ray(options.engine == "ray", options.ray_address, options.workers):
        made = comparison.compare(
            names,
            lambda seed: federation if seed == options.seed else _federation(flags, seed),
            seeds=flags.compared.seeds,
            first_seed=options.seed,
            out=setting.out,
            setting=about,
            tracker=lambda label: _trackers(setting, label, Console(stderr=True)),
            model=setting.model,
            model_options=_chosen(flags, "model"),
            head=setting.head,
            training=flags.training,
            options=options,
        )
    if setting.json:
        print(json.dumps(made.to_json(), indent=2))
        return 0
    from fedkin.report.tables import terminal

    note = about + "\npersonal: the model each client uses, on its own test rows, after the last round"
    if comparison.REFERENCE not in names:
        note += "\nAdd the method 'local' to see each client's gain over training alone"
    console.print(terminal("Comparison", made.header, made.rows, note))
    if setting.out is not None:
        print(f"Runs, comparison.json and comparison.md are in {setting.out}. To see them: fedkin report {setting.out}")
    return 0


def demo(words: list[str]) -> int:
    """The main job on embedded data: who gains from learning together?"""
    if words and words[0] in ("-h", "--help"):
        print(
            "usage: fedkin demo [--out DIR]\n\nCompare methods on scikit-learn's digits, 20 clients, in under a minute."
        )
        return 0
    out = _given(words, "out", "runs/demo")
    flags = "--data digits --partition dirichlet --partition.alpha 0.2 --clients 20 --rounds 20 --epochs 2 --fresh"
    return compare([*DEMO, *flags.split(), "--out", out]) or report([out])


DEMO = ["local", "fedavg", "fedavg-ft", "fedcedar", "pflic", "pfedgat-v2", "dcpfl"]


# ---- to look at
def _shown(words: list[str], kind: Any, command: str, about: str) -> tuple[list[str], Any]:
    """Folders, and the flags after them."""
    folders, rest = _split_words(words)
    if not folders and not {"-h", "--help"} & set(rest):
        raise UserError(f"{command} needs a folder: the --out of a run or of a comparison.")
    return folders, _flags(rest, {"own": (kind, kind())}, {}, f"fedkin {command} DIR", about).own


def _cite(methods: Sequence[str]) -> str:
    from fedkin.results.citation import citation

    return citation(methods)


def report(words: list[str]) -> int:
    folders, flags = _shown(words, Paged, "report", "One self-contained HTML page of runs or of a comparison.")
    from fedkin.report import page

    print(f"Report: {page.write(folders, flags.out, _cite(page.labels(folders)))}")
    return 0


def watch(words: list[str]) -> int:
    folders, flags = _shown(words, Watched, "watch", "The report's page while a run goes on; Ctrl-C ends it.")
    from fedkin.report.watch import server

    with server(folders, flags.port, _cite) as made:
        print(f"http://127.0.0.1:{made.server_port}/ shows {', '.join(folders)}. Ctrl-C ends it.", flush=True)
        try:
            made.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def figures(words: list[str]) -> int:
    folders, flags = _shown(words, Drawn, "figures", "Figures for papers, in one style.")
    from fedkin.report import figures as drawn

    for path in drawn.write(folders, flags.out, flags.format):
        print(path)
    return 0


def listing(words: list[str]) -> int:
    from fedkin.data import DATASETS
    from fedkin.data.partition import PARTITIONS
    from fedkin.methods import METHODS
    from fedkin.models import MODELS
    from fedkin.report.tables import terminal

    kinds = ("methods", "datasets", "partitions", "models")
    if words and words[0] in ("-h", "--help"):
        print(
            "usage: fedkin list [methods|datasets|partitions|models] [--wide]\n\n--wide: also papers, and what travels"
        )
        return 0
    wide, wanted = "--wide" in words, [word for word in words if word != "--wide"] or list(kinds)
    for kind in wanted:
        if kind not in kinds:
            raise UserError(f"There is no list of '{kind}'. Known: {', '.join(kinds)}.")
    console = _console()
    for kind in wanted:
        if kind == "methods":
            rows: list[tuple[str, ...]] = [(n, e.summary) for n, e in METHODS.items()]
            header: tuple[str, ...] = ("name", "what it does")
            if wide:  # these stand in the methods' own files, which import torch
                loaded = {n: e.load() for n, e in METHODS.items()}
                rows = [(*row, k.paper, k.travels, k.stays) for row, k in zip(rows, loaded.values())]
                header = (*header, "paper", "travels", "stays at the client")
            table = terminal("Methods", header, rows)
        elif kind == "partitions":
            table = terminal("Partitions", ("name", "what it does"), [(n, p.summary) for n, p in PARTITIONS.items()])
        else:
            entries = DATASETS if kind == "datasets" else MODELS
            table = terminal(kind.capitalize(), ("name", "what it is"), [(n, e.summary) for n, e in entries.items()])
        for column in table.columns:
            column.justify = "left"
        console.print(table)
    return 0


def reproduce(words: list[str]) -> int:
    from fedkin.experiments.reproduce import command

    return command(words, _console())


def bench(words: list[str]) -> int:
    from fedkin.experiments.bench import command

    return command(words, _console())


def cite(words: list[str]) -> int:
    from fedkin.methods import METHODS
    from fedkin.registry import lookup
    from fedkin.results.citation import citation

    for name in words:
        lookup(METHODS, name.split(",")[0], "method")
    print(citation(words), end="")
    return 0


def deploy(words: list[str]) -> int:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise UserError("fedkin deploy needs Flower: pip install 'fedkin[flower]'.")
    from fedkin.deploy.scaffold import main

    return main(words)


def verify(words: list[str]) -> int:
    from fedkin.methods import METHODS

    if words and words[0] in ("-h", "--help"):
        print(
            "usage: fedkin verify [METHOD …] [--ray]\n\nMETHOD: a name, or your own as file.py:Class; "
            "none: all built-in ones.\n--ray: also check that the Ray engine gives the same bits."
        )
        return 0
    from fedkin.conformance import verify as check

    names, ray = [word for word in words if word != "--ray"], "--ray" in words
    console = _console()
    failures = 0
    with _ray(ray):
        for name in names or METHODS:
            console.print(f"[bold]{name}[/bold]")
            for outcome in check(name, ray=ray):
                failures += not outcome.passed
                mark = "[green]✓[/green]" if outcome.passed else "[red]✗[/red]"
                console.print(f"  {mark} {outcome.name} ({outcome.seconds:.1f} s)", highlight=False)
                if not outcome.passed:
                    console.print(f"      {outcome.detail}", markup=False, highlight=False)
    console.print("All properties hold." if not failures else f"{failures} properties do not hold.")
    return 1 if failures else 0
