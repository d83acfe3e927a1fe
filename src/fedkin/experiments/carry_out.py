"""Runs the cells of an item: side by side, one a core, each resumed where it was; finished ones are not run again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fedkin.experiments.declare import Cell, Item, Run, Scale, Setting, key, scaled
from fedkin.experiments.outcome import Outcome

DRAWS = 100  # of the partition, for a level of heterogeneity


@dataclass(frozen=True)
class Job:
    """One run, complete: what it does is a function of this alone."""

    method: str
    setting: Setting
    width: float
    seed: int

    @property
    def name(self) -> str:
        digest = hashlib.blake2b(key(self).encode(), digest_size=6).hexdigest()
        method = "".join(c if c.isalnum() or c in "-=." else "_" for c in self.method)[:60]
        return f"{self.setting.data}-{self.setting.partition}-{method}-seed{self.seed}-{digest}"


def job(cell: Cell, scale: Scale, seed: int) -> Job:
    setting = scaled(cell.setting, scale)
    eighth = max(min(8, setting.rounds // 2), setting.rounds // 8)
    method = cell.method.format(eighth=eighth, epochs=setting.epochs)
    return Job(method, setting, scale.width, seed)


def carry_out(
    name: str,
    item: Item,
    scale: Scale,
    out: Path,
    *,
    seeds: int | None = None,
    only: Sequence[str] = (),
    workers: int = 0,
    on_progress: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> Outcome:
    """Run what is missing and read the rest. `told(done, total, label)` hears of every run that has ended."""
    count = seeds if seeds is not None else item.seeds_at(scale)
    cells = [c for c in item.cells if not only or c.row in only or c.method.split(",")[0] in only]
    if only and not cells:
        raise ValueError(f"--only {','.join(only)} leaves nothing of {name}; its rows: {', '.join(item.rows())}.")
    jobs = {(cell.row, cell.column, seed): job(cell, scale, seed) for cell in cells for seed in range(count)}
    failed = run_all(list(jobs.values()), out, workers=workers, on_progress=on_progress)
    runs: dict[tuple[str, str], list[Run]] = {}
    missing: dict[tuple[str, str], str] = {}
    seconds = 0.0
    counted: set[str] = set()
    for cell in cells:
        place = (cell.row, cell.column)
        for seed in range(count):
            one = jobs[(*place, seed)]
            if one.name in failed:
                missing[place] = failed[one.name]  # of other seeds there may be runs
                continue
            folder = out / "runs" / one.name
            runs.setdefault(place, []).append(Run(replace(cell, setting=one.setting), seed, folder))
            if one.name not in counted:
                counted.add(one.name)
                seconds += json.loads((folder / "cell.json").read_text())["seconds"]
    return Outcome(name, item, scale, runs, missing, seconds)


def run_all(
    jobs: Sequence[Job],
    out: Path,
    *,
    workers: int = 0,
    on_progress: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> dict[str, str]:
    """Every job once; returns those that could not be run, with the reason."""
    distinct = list({j.name: j for j in jobs}.values())
    waiting = [j for j in distinct if not finished(out, j)]
    absent = {data: why for data in {j.setting.data for j in waiting} if (why := unavailable(data))}
    failed = {j.name: absent[j.setting.data] for j in waiting if j.setting.data in absent}
    # jobs on the same data next to each other: a worker keeps what it has loaded
    waiting = sorted(
        (j for j in waiting if j.name not in failed), key=lambda j: (j.setting.data, key(j.setting), j.seed)
    )
    done = len(distinct) - len(waiting)
    on_progress(done, len(distinct), "")
    if not waiting:
        return failed
    count = min(workers or os.cpu_count() or 1, len(waiting))
    if count == 1:  # in this process
        for number, one in enumerate(waiting, start=done + 1):
            _try(lambda one=one: run_one(one, out), one, failed)  # type: ignore[misc]
            on_progress(number, len(distinct), one.name)
        return failed
    queue = iter(waiting)
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_alone) as pool:
        running = {pool.submit(run_one, j, out): j for _, j in zip(range(count), queue)}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ended = running.pop(future)
                _try(future.result, ended, failed)
                done += 1
                on_progress(done, len(distinct), ended.name)
                if (following := next(queue, None)) is not None:
                    running[pool.submit(run_one, following, out)] = following
    return failed


def _try(function: Callable[[], object], job: Job, failed: dict[str, str]) -> None:
    """One run that fails must not cost the hours of the others: it is said in the outcome, and run again next time."""
    try:
        function()
    except Exception as error:
        first = str(error).strip().split("\n")[0]  # of an error at a client the rest is its traceback
        failed[job.name] = f"failed: {type(error).__name__}: {first}"


def unavailable(data: str) -> str:
    """Why this data cannot be had; empty where it can."""
    try:
        _arrays(data)
    except FileNotFoundError as error:
        return str(error)
    return ""


def _alone() -> None:
    """In each worker: one thread, since there are as many workers as cores."""
    import torch

    torch.set_num_threads(1)


def finished(out: Path, job: Job) -> bool:
    return (out / "runs" / job.name / "cell.json").exists()


def run_one(job: Job, out: Path) -> None:
    from fedkin.engine.loop import run
    from fedkin.methods import method
    from fedkin.results.comparison import parse

    setting, folder = job.setting, out / "runs" / job.name
    federation = _federation(key(setting), job.seed)
    begin = time.perf_counter()  # without loading: the first run on some data does that for the others
    name, fields = parse(job.method)
    if fields.get("nodes") is True:  # FedCEDAR's case study: its server knows the nodes
        assert federation.groups is not None
        fields["nodes"] = tuple(federation.groups.tolist())
    train = len(federation.splits[0].train)
    run(
        method(name, **fields),
        federation,
        model=setting.model,
        model_options={"width": job.width},
        label=job.method,
        out=folder,
        engine="serial",
        seed=job.seed,
        rounds=setting.rounds,
        participation=setting.participation,
        lr=setting.lr,
        epochs=setting.epochs,
        batch_size=-(-train // setting.batches) if setting.batches else setting.batch_size,
        evaluate_every=setting.evaluate_every,
        arrive=dict(_arrivals(setting)),
        save_models=False,
    )
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    seconds = time.perf_counter() - begin
    (folder / "cell.json").write_text(json.dumps({"job": asdict(job), "seconds": seconds}, default=dict))


def _arrivals(setting: Setting) -> Iterator[tuple[int, int]]:
    late = round(setting.clients * setting.arrive_share)
    when = max(1, setting.rounds - setting.arrive_rounds + 1)
    yield from ((client, when) for client in range(setting.clients - late, setting.clients))


@lru_cache(maxsize=2)
def _arrays(data: str) -> Any:
    from fedkin.data import load

    return load(data)


@lru_cache(maxsize=2)
def _federation(text: str, seed: int) -> Any:
    from fedkin.data.federation import federate

    setting = Setting(**json.loads(text))
    draw = level_seed(text, seed) if setting.level else seed
    made = federate(
        _arrays(setting.data),
        partition=setting.partition,
        clients=setting.clients,
        seed=draw,
        pool="train" if _arrays(setting.data).train is not None else "all",
        samples_per_client=setting.rows,
        test=setting.test,
        **setting.partition_options,
    )
    return replace(made, description={**made.description, "data": setting.data})


def level_seed(text: str, seed: int) -> int:
    """Of `DRAWS` partitions one in the middle of the wanted third of the range of mean KLD."""
    setting = Setting(**json.loads(text))
    klds = _draws(setting.data, setting.partition, json.dumps(dict(setting.partition_options)), setting.clients, seed)
    third = ("Low", "Mid", "High").index(setting.level)
    low, high = min(klds), max(klds)
    wanted = low + (high - low) * (third + 0.5) / 3
    return seed * DRAWS + min(range(len(klds)), key=lambda i: abs(klds[i] - wanted))


@lru_cache(maxsize=4)
def _draws(data: str, partition: str, options: str, clients: int, seed: int) -> tuple[float, ...]:
    from fedkin.data.partition import PARTITIONS
    from fedkin.maths.divergence import mean_kld

    arrays = _arrays(data)
    labels = arrays.y[: arrays.train]
    scheme = PARTITIONS[partition](**json.loads(options))
    return tuple(
        mean_kld(scheme(labels, clients, seed * DRAWS + draw).counts(labels, arrays.classes)) for draw in range(DRAWS)
    )
