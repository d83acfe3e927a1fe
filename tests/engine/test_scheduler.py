"""The scheduler, with workers that do what the test says and a clock that the test moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
import torch

from fedkin.engine import scheduler
from fedkin.engine.runner import Evaluation, Outcome, RunSpec, Task
from fedkin.engine.scheduler import Line, Scheduler, WorkerDied
from fedkin.protocol import Message


class World:
    """Time, and how long each client takes: seconds, "hangs", or "dies"."""

    def __init__(self, **behavior: float | str) -> None:
        self.now = 1000.0
        self.behavior = {int(k.removeprefix("c")): v for k, v in behavior.items()}
        self.started: list[int] = []
        self.replaced: list[int] = []


class Population:
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = torch.tensor(sizes)


class Fake(Scheduler):
    def __init__(self, world: World, sizes: list[int], workers: int, limit: float | None = None) -> None:
        spec = RunSpec(None, Population(sizes), lambda: None, None, None, 0)  # type: ignore[arg-type]
        super().__init__(spec, limit)
        self.world = world
        self.queues: list[deque[tuple[Task, float]]] = [deque() for _ in range(workers)]
        self.lines = [Line() for _ in range(workers)]
        self.stall: Callable[[], float] = lambda: 0.0

    def post(self, message):
        pass

    def give(self, worker, work):
        self.world.started.append(work.client)
        queue = self.queues[worker]
        how = self.world.behavior.get(work.client, 1.0)
        begin = max(self.world.now, queue[-1][1]) if queue else self.world.now
        queue.append((work, begin + how if isinstance(how, float) else float("inf") if how == "hangs" else begin))

    def wait(self, workers, timeout):
        due = min(self.queues[w][0][1] for w in workers)
        self.world.now = min(max(due, self.world.now), self.world.now + timeout) + self.stall()
        return {w for w in workers if self.queues[w][0][1] <= self.world.now}

    def take(self, worker, work):
        task, _ = self.queues[worker].popleft()
        assert task is work
        if self.world.behavior.get(work.client) == "dies":
            raise WorkerDied("its worker", "a reason")
        return Outcome(work.position, work.client, (), False, {}, 0.0, 0.0, "")

    def replace(self, worker):
        self.world.replaced.append(worker)
        self.queues[worker].clear()

    def close(self):
        pass


@pytest.fixture
def make(monkeypatch):
    def make(sizes=(1, 1, 1, 1), workers=2, limit=None, **behavior):
        world = World(**behavior)
        monkeypatch.setattr(scheduler.time, "monotonic", lambda: world.now)
        return Fake(world, list(sizes), workers, limit), world

    return make


def tasks(count: int) -> list[Task]:
    return [Task(1, i, i, "local", None, None) for i in range(count)]


def test_outcomes_come_in_the_order_of_the_work_and_the_largest_goes_first(make):
    engine, world = make(sizes=(1, 5, 3, 2))
    assert [o.client for o in engine.run(tasks(4), Message())] == [0, 1, 2, 3]
    assert world.started == [1, 2, 3, 0]
    assert not world.replaced


def test_work_that_kills_three_workers_is_given_up_and_the_rest_is_done(make):
    engine, world = make(c2="dies")
    outcomes = engine.run(tasks(4), Message())
    assert [bool(o.error) for o in outcomes] == [False, False, True, False]
    assert outcomes[2].error == "round 1, client 2, hook local: its worker died 3 times (a reason)"
    assert world.started.count(2) == scheduler.TRIES == len(world.replaced)


def test_a_limit_that_was_set(make):
    engine, world = make(limit=7.0, c1="hangs")
    outcomes = engine.run(tasks(4), Message())
    assert "did not answer within 7 s" in outcomes[1].error
    assert [bool(o.error) for o in outcomes] == [False, True, False, False]
    assert world.now - 1000 < 7 + 2 * scheduler.LOOK_EVERY
    assert len(world.replaced) == 1


@pytest.mark.parametrize(("seconds", "allowed"), [(1.0, 60.0), (10.0, 200.0)])
def test_without_a_limit_a_hanging_client_is_given_up_by_the_times_of_the_others(make, seconds, allowed):
    engine, world = make(c1="hangs", c0=seconds, c2=seconds, c3=seconds)
    outcomes = engine.run(tasks(4), Message())
    assert f"did not answer within {allowed:g} s, 20 times the longest answer so far" in outcomes[1].error
    assert "--time-limit" in outcomes[1].error
    assert [bool(o.error) for o in outcomes] == [False, True, False, False]
    assert allowed <= world.now - 1000 <= allowed + 4 * seconds + 2 * scheduler.LOOK_EVERY


def test_the_times_of_earlier_rounds_count_too(make):
    engine, world = make(workers=1, c0=30.0)
    engine.run(tasks(1), Message())
    assert engine.allowed(tasks(1)[0]) == 600
    assert engine.allowed(Evaluation(1, 0, 0, None)) == 3600, "of evaluations nothing is known yet"
    world.behavior = {1: 599.0}
    assert not engine.run(tasks(2), Message())[1].error


def test_where_nothing_is_known_there_is_a_limit_all_the_same(make):
    engine, world = make(workers=1, c0="hangs")
    assert "did not answer within 3600 s (set --time-limit" in engine.run(tasks(1), Message())[0].error
    assert world.now - 1000 >= 3600


def test_nobody_runs_out_of_time_while_the_process_is_suspended(make):
    engine, world = make(workers=1, limit=20.0, c0=15.0)
    naps = iter([10_000.0])
    engine.stall = lambda: next(naps, 0.0)
    # the worker sleeps as well: its answer is due that much later
    give = engine.give

    def give_late(worker, work):
        give(worker, work)
        task, due = engine.queues[worker].pop()
        engine.queues[worker].append((task, due + 10_000.0))

    engine.give = give_late
    assert not engine.run(tasks(1), Message())[0].error
    assert world.now > 11_000


def test_who_hangs_is_given_up_and_not_those_whose_answers_it_holds_back(make):
    engine, _ = make(workers=1, limit=7.0, c0="hangs", c1="hangs")
    engine.finished = lambda worker: 1  # client 0 is done, but its worker is busy with client 1
    replace = engine.replace

    def replace_and_recover(worker):
        replace(worker)
        engine.world.behavior[0], engine.finished = 1.0, lambda worker: 0

    engine.replace = replace_and_recover
    assert [bool(o.error) for o in engine.run(tasks(4), Message())] == [False, True, False, False]


def test_who_kills_its_worker_is_given_up_and_not_those_whose_answers_are_lost_with_it(make):
    engine, world = make(workers=1, c0="dies", c1="dies")
    replace = engine.replace
    engine.finished = lambda worker: 1  # twice the worker is done with client 0, and dies with client 1

    def replace_and_recover(worker):
        replace(worker)
        if len(world.replaced) == 2:
            world.behavior[0], engine.finished = 1.0, lambda worker: 0

    engine.replace = replace_and_recover
    outcomes = engine.run(tasks(4), Message())
    assert [o.error.rpartition(": ")[2] for o in outcomes] == ["", "its worker died 3 times (a reason)", "", ""]
    assert len(world.replaced) == scheduler.TRIES


def test_short_work_is_queued_by_the_dozen_and_long_work_two_at_a_time(make):
    engine, _ = make(sizes=[1] * 40, workers=1)
    seconds, most = 0.0002, []
    take, give = engine.take, engine.give
    engine.take = lambda worker, work: take(worker, work)._replace(seconds=seconds)

    def counted(worker, work):
        give(worker, work)
        most.append(len(engine.queues[worker]))

    engine.give = counted
    for _ in range(3):
        engine.run(tasks(40), Message())
    assert max(most) == scheduler.DEEPEST
    seconds = 1.0
    engine.run(tasks(40), Message())
    most.clear()
    engine.run(tasks(40), Message())
    assert max(most) == scheduler.DEPTH
