"""Run cells in parallel, one on each core. Stored results are reused, finished runs are not repeated, stopped ones
resume."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from typing import Any

from fedkin.experiments.cells import Cells, Job, extract, job
from fedkin.experiments.declare import Cell, Item, Run, Setting
from fedkin.experiments.outcome import Outcome
from fedkin.results.files import read_json, write_json
from fedkin.results.folder import FolderError, remove_run

Progress = Callable[[int, int, str], None]


def silent(done: int, total: int, label: str) -> None:
    """Report no progress."""


def carry_out(
    name: str,
    item: Item,
    scale: str,
    out: Path,
    cells: Cells,
    *,
    seeds: int | None = None,
    only: Sequence[str] = (),
    keep: Mapping[str, Collection[str]] | None = None,
    workers: int = 0,
    on_progress: Progress = silent,
) -> Outcome:
    """Run what is missing of an item and read the rest. `keep` says what other items need of the same runs (see
    `needs`); `on_progress(done, total, label)` is called after each run."""
    wanted = jobs_of(name, item, scale, seeds=seeds, only=only)
    keep = {one.name: {*item.keep, *(keep or {}).get(one.name, ())} for one in wanted.values()}
    failed = run_all(list(wanted.values()), out, cells, keep=keep, workers=workers, on_progress=on_progress)
    return collect(name, item, scale, cells, seeds=seeds, only=only, failed=failed)


def needs(items: Mapping[str, Item], scale: str) -> dict[str, set[str]]:
    """What to keep of each run, by name, for all of these items together."""
    out: dict[str, set[str]] = {}
    for name, item in items.items():
        for one in jobs_of(name, item, scale).values():
            out.setdefault(one.name, set()).update(item.keep)
    return out


def jobs_of(
    name: str, item: Item, scale: str, *, seeds: int | None = None, only: Sequence[str] = ()
) -> dict[tuple[str, str, int], Job]:
    """(row, column, seed) to its job, for the cells that are run at this scale."""
    chosen = [c for c in item.cells if not only or c.row in only or c.column in only or c.method.split(",")[0] in only]
    if not chosen:
        raise ValueError(f"--only {','.join(only)} leaves nothing of {name}; its rows: {', '.join(item.rows())}.")
    count = item.seeds_at(scale) if seeds is None else seeds
    found = {(c.row, c.column, seed): job(c, scale, seed) for c in chosen for seed in range(count)}
    return {index: one for index, one in found.items() if one is not None}


def collect(
    name: str,
    item: Item,
    scale: str,
    cells: Cells,
    *,
    seeds: int | None = None,
    only: Sequence[str] = (),
    failed: Mapping[str, str] | None = None,
) -> Outcome:
    """The outcome of an item from stored results alone. It names what is missing."""
    failed = failed if failed is not None else cells.failures
    runs: dict[tuple[str, str], list[Run]] = {}
    missing: dict[tuple[str, str], str] = {}
    seconds: dict[str, float] = {}
    wanted = jobs_of(name, item, scale, seeds=seeds, only=only)
    for cell in item.cells:
        index = (cell.row, cell.column)
        own = {seed: one for (row, column, seed), one in wanted.items() if (row, column) == index}
        if not own and not only:
            missing[index] = f"not run: {_why_left_out(cell)}"
        for seed, one in own.items():
            result = cells.get(one, item.keep)
            if result is None:
                missing[index] = failed.get(one.name, "not run yet")
                continue
            runs.setdefault(index, []).append(Run(cell, one.setting, seed, result))
            seconds[one.name] = result["seconds"]
    return Outcome(name, item, scale, runs, missing, sum(seconds.values()))


def _why_left_out(cell: Cell) -> str:
    return "SVHN is not at hand" if cell.setting.data == "svhn" else "more than two cores do in half an hour"


def run_all(
    jobs: Sequence[Job],
    out: Path,
    cells: Cells,
    *,
    keep: Mapping[str, Collection[str]] | None = None,
    workers: int = 0,
    on_progress: Progress = silent,
) -> dict[str, str]:
    """Run every job once. Returns those that could not be run, with the reason."""
    from fedkin.experiments.federations import unavailable

    keep = keep or {}
    distinct = {j.name: j for j in jobs}
    waiting = []
    for name, one in distinct.items():
        if cells.get(one, keep.get(name, ())) is None and not _stored(one, out, cells, keep.get(name, ())):
            waiting.append(one)
    # asked once for each data set and partition: without a network, each answer may take long
    asked = {(j.setting.data, j.setting.partition): j.setting for j in waiting}
    absent = {key: why for key, setting in asked.items() if (why := unavailable(setting))}
    keys = {j.name: (j.setting.data, j.setting.partition) for j in waiting}
    failed = {name: absent[key] for name, key in keys.items() if key in absent}
    waiting = [j for j in waiting if j.name not in failed]
    # jobs on the same data follow each other, because a worker caches the data it has loaded
    waiting.sort(key=lambda j: (j.setting.data, j.seed, j.folder))
    done = len(distinct) - len(waiting)
    on_progress(done, len(distinct), "")

    def ended(one: Job, wait_for: Callable[[], object]) -> None:
        nonlocal done
        try:
            wait_for()
            _stored(one, out, cells, keep.get(one.name, ()))
        except BrokenProcessPool:
            raise
        except Exception as error:  # a failed run must not stop the others
            first = str(error).strip().split("\n")[0]  # the rest of a client's error is its traceback
            failed[one.name] = f"failed: {type(error).__name__}: {first}"
            if not isinstance(error, FolderError | OSError):  # such trouble is this machine's, not the method's
                cells.note(one, failed[one.name])
        else:
            cells.note(one, "")
        done += 1
        on_progress(done, len(distinct), one.name)

    count = min(workers or os.cpu_count() or 1, len(waiting))
    if count == 1:
        _alone()
    if count <= 1:  # in this process
        for one in waiting:
            ended(one, lambda one=one: run_one(one, out))  # type: ignore[misc]
        return failed
    queue, context = iter(waiting), get_context("spawn")
    held, holding = context.Pipe(duplex=False)
    with _unheard_by_children():  # it starts Python's resource tracker
        pool = ProcessPoolExecutor(count, context, _begin_worker, (held,))
    try:
        with pool, holding:
            with _unheard_by_children():
                running = {pool.submit(run_one, j, out): j for _, j in zip(range(count), queue)}
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    ended(running.pop(future), future.result)
                    if (following := next(queue, None)) is not None:
                        running[pool.submit(run_one, following, out)] = following
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "A process with a run in it was ended, perhaps for want of memory. The same command with the same --out "
            "resumes; with --workers 1 it needs less memory."
        ) from error
    return failed


@contextlib.contextmanager
def _unheard_by_children() -> Iterator[None]:
    """Processes started in this block never hear Ctrl-C or a hang-up, which a terminal sends to all of them: their
    parent does, and ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(held: Connection) -> None:
    threading.Thread(target=_end_with_parent, args=(held,), daemon=True).start()
    _alone()


def _end_with_parent(held: Connection) -> None:
    """End this worker when its parent ends, or lets go of the other end of the pipe because it was stopped."""
    wait_for_any([held])
    os._exit(1)


def _alone() -> None:
    """Use one thread per run: runs are parallel, and such small ones gain nothing from more."""
    import torch

    torch.set_num_threads(1)


def _stored(one: Job, out: Path, cells: Cells, keep: Collection[str]) -> bool:
    """Store the result of a finished run. Return False if it has not finished, or was evaluated too rarely."""
    folder = out / "runs" / one.name
    if not (folder / "finished.json").exists():
        return False
    about = read_json(folder / "finished.json")
    if about["every"] != one.setting.evaluate_every and {"curve", "time"} & set(keep):
        _removed(folder)
        return False
    cells.put(one, extract(folder, one.setting, keep, about["seconds"]))
    return True


def run_one(one: Job, out: Path) -> None:
    from fedkin.engine.loop import run

    setting, folder = one.setting, out / "runs" / one.name
    federation = _federation(setting_key(setting), one.seed)
    begin = time.process_time()  # without loading: the first run on some data does that for the others
    train = max(1, round(float(federation.sizes.float().mean())))
    start = partial(
        run,
        method_of(one.method, federation),
        federation,
        model=setting.model,
        model_options={"width": setting.width},
        label=one.method,
        out=folder,
        engine="serial",
        seed=one.seed,
        rounds=setting.rounds,
        participation=setting.participation,
        lr=setting.lr,
        epochs=setting.epochs,
        batch_size=-(-train // setting.batches) if setting.batches else setting.batch_size,
        evaluate_every=setting.evaluate_every,
        curves=False,
        checkpoint_every=25,
        arrive=dict(_arrivals(setting)),
        save_models=False,
    )
    try:
        start()
    except ValueError as error:
        if "holds another run" not in str(error):
            raise
        _removed(folder)  # it was stopped, and the code has changed since: start over
        start()
    write_json(folder / "finished.json", {"seconds": time.process_time() - begin, "every": setting.evaluate_every})
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)  # last: a kill in the middle of it does no harm


def _removed(folder: Path) -> None:
    """Remove a run. After a kill in the middle of it the folder is still known as fedkin's."""
    (folder / "finished.json").unlink(missing_ok=True)
    remove_run(folder)


def method_of(label: str, federation: Any) -> Any:
    """A method by its label. DC-PFL's `oracle` and FedCEDAR's `nodes` are read from the federation: no real server
    knows them."""
    from fedkin.experiments.federations import by_kld
    from fedkin.methods import method
    from fedkin.registry import parse_label

    name, options = parse_label(label)
    if "oracle" in options:  # share:0.8 or count:2
        how, _, value = options["oracle"].partition(":")
        options["oracle"] = by_kld(federation.counts, **{how: json.loads(value)})
    if options.get("nodes") is True:
        assert federation.groups is not None
        options["nodes"] = tuple(federation.groups.tolist())
    return method(name, **options)


def _arrivals(setting: Setting) -> Iterator[tuple[int, int]]:
    late = round(setting.clients * setting.arrive_share)
    when = max(1, setting.rounds - setting.arrive_rounds + 1)
    yield from ((client, when) for client in range(setting.clients - late, setting.clients))


def setting_key(setting: Setting) -> str:
    return json.dumps(setting.changed(), sort_keys=True)


@lru_cache(maxsize=2)
def _federation(text: str, seed: int) -> Any:
    from fedkin.experiments.federations import build

    return build(Setting(**json.loads(text)), seed)
