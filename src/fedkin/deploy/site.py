"""One site with its own data and disk. What the server asks for is checked here before anything is done."""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

import fedkin
from fedkin.data.federation import Federation, site_statistics
from fedkin.data.preprocess import Fit
from fedkin.deploy.codec import MOST_TEXT, Answer, Malformed, Request, SiteInfo, decode_request, encode_answer
from fedkin.deploy.config import SHARES
from fedkin.deploy.config import SiteConfig as SiteConfig
from fedkin.deploy.disk import (
    STATE,
    answered,
    keep_loadable,
    log,
    privacy_of,
    private_files,
    remove_unused,
    round_of,
    settle,
    states,
)
from fedkin.deploy.plan import Plan, kind_of, read
from fedkin.deploy.secure import Secure, exchange_of
from fedkin.deploy.secure import decode as decode_secure
from fedkin.deploy.secure import encode as encode_secure
from fedkin.deploy.secure_site import SecureSite
from fedkin.deploy.targets import in_units_of
from fedkin.engine.costs import nbytes
from fedkin.engine.device import names as device_names
from fedkin.engine.device import open_device
from fedkin.engine.runner import ClientRunner, Evaluation, Outcome, RunSpec, Task, Work
from fedkin.models.build import maker, resolve
from fedkin.protocol import Message, is_client_function
from fedkin.results.files import write_json

RUN = re.compile(r"[0-9a-f]{16}")
PACKAGE = Path(fedkin.__file__).parent


def statistics(config: SiteConfig, how: str) -> str:
    """Statistics of this site's table, if its own file allows sharing them."""
    if how not in SHARES[1:] or SHARES.index(how) > SHARES.index(config.share):
        raise Malformed(f"this site shares '{config.share}'; the run asks for '{how}' (`share` in the site's file).")
    own = site_statistics(
        config.arrays(), fit=cast(Fit, how), seed=config.seed, test=config.test, validation=config.validation
    )
    return json.dumps(own)


def introduce(config: SiteConfig, preprocessing: str = "") -> SiteInfo:
    mine = config.load(preprocessing)
    (split,) = mine.splits
    return SiteInfo(
        client=config.name,
        data=config.kind,
        shape=" ".join(map(str, mine.shape)),
        columns=blake2b("\n".join(mine.schema).encode(), digest_size=8).hexdigest() if mine.schema else "",
        classes=mine.classes,
        train=len(split.train),
        validation=len(split.validation),
        test=len(split.test),
        task=mine.arrays.task,
        outputs=0 if mine.classes else mine.outputs,
        fedkin=fedkin.__version__,
    )


def answer(config: SiteConfig, run_config: Mapping[str, Any], record: RecordDict) -> RecordDict:
    """Answer a request: check it, perform it, and log it, whether it succeeds or not."""
    request: Request | None = None
    sent, scores = Message(), dict[str, float]()
    body: tuple[Tensor, ...] = ()
    secure: Secure | None = None
    with private_files():
        try:
            permit(config, run_config)
            request, sent = decode_request(record)
            _within_limits(config, request)
            plan, asked = read(run_config), decode_secure(record)
            _check(config, plan, request)
            if request.function and (plan.secure or config.secure) != (asked is not None):
                raise Malformed("this site's replies leave it under secure aggregation only (run.secure=true).")
            if asked is None:
                made, outcome = perform(config, plan, request, sent)
                body, scores = outcome.body, outcome.scores
            else:
                made, body, scores, secure = _sum(config, plan, request, sent, asked)
            if config.max_bytes and nbytes(body) > config.max_bytes:
                raise Malformed(f"the reply has {nbytes(body)} bytes; this site sends at most {config.max_bytes}.")
        except Exception as error:
            made, body, scores, secure = refused(config, error), (), {}, None
        log(config, request, nbytes((*sent.shared, *sent.own)), nbytes(body), made.error)
    reply = encode_answer(made, body, scores)
    if secure is not None:
        reply["secure"] = encode_secure(secure)
    return reply


def _sum(
    config: SiteConfig, plan: Plan, request: Request, sent: Message, asked: Secure
) -> tuple[Answer, tuple[Tensor, ...], dict[str, float], Secure | None]:
    """One stage of a secure sum. Only the stage `masked` does the work, and what leaves the site then is masked."""
    folder = Path(config.state) / request.run / config.name
    part = SecureSite(folder, config.name, request.round, exchange_of(request.new_state), asked)
    made = Answer(config.name, False, 0.0, 0.0, "", "", "")
    if asked.stage == "keys":
        return made, (), {}, part.keys()
    if asked.stage == "shares":
        return made, (), {}, part.shares()
    if asked.stage == "open":
        return made, (), {}, part.open()
    part.accept()
    made, outcome = perform(config, plan, request, sent)
    if made.error:
        return made, (), {}, None
    weight = len(config.load(request.preprocessing).splits[0].train) if plan.method.averages == "size" else 1
    secure, body = part.masked(outcome.body, weight)
    return made, body, outcome.scores, secure


def permit(config: SiteConfig, run_config: Mapping[str, Any]) -> None:
    """Raise if the run would import code that this site's own file does not allow."""
    allowed = _listed(config.allow)
    for key in ("method.name", "model.name", "task.kind"):
        name = str(run_config.get(key, "")).split(",")[0].strip()
        if (":" in name or name.endswith(".py")) and name not in allowed:
            raise Malformed(f"{key}='{name}' is not fedkin's own: this site's file must name it under `allow`.")


def _within_limits(config: SiteConfig, request: Request) -> None:
    functions = _listed(config.functions)
    if request.function and functions and request.function not in functions:
        raise Malformed(f"this site runs {', '.join(functions)}; '{request.function}' is not among them.")
    if config.max_rounds and request.round > config.max_rounds:
        raise Malformed(f"this site answers {config.max_rounds} rounds; this is round {request.round}.")
    if config.max_requests and answered(config, request.run) >= config.max_requests:
        raise Malformed(f"this site has already answered {config.max_requests} requests of this run, its limit.")


def perform(config: SiteConfig, plan: Plan, request: Request, message: Message) -> tuple[Answer, Outcome]:
    """Perform a request if it is permitted."""
    _check(config, plan, request)
    torch.set_num_threads(config.threads)
    folder = Path(config.state) / request.run / config.name
    notes = []
    before = folder / request.state if request.state else None
    if before is not None and not before.exists():
        if any(round_of(path.name) >= request.round for path in states(folder)):
            raise Malformed(f"round {request.round} is over: its private state is gone, and later ones exist.")
        notes.append(f"started from scratch: its private state {request.state} is no longer on its disk")
        before = None
    remove_unused(folder, {request.state, request.new_state, *request.keep.split()}, request.round)
    mine = config.load(request.preprocessing)
    _check_task(plan, request, mine)
    task = in_units_of(plan.task, request.preprocessing)
    arrays = replace(mine.arrays, classes=request.classes)
    # whatever the server's number for this client, the examples are its own
    count = request.number + 1
    turns = None if mine.partition.turns is None else np.repeat(mine.partition.turns, count)
    known = replace(mine, arrays=arrays, splits=mine.splits * count, partition=replace(mine.partition, turns=turns))
    outputs = request.outputs or request.classes
    make = maker(resolve(plan.model, request.data), known.shape, outputs, plan.options.seed, plan.model_options)
    privacy = privacy_of(config, plan)
    if config.privacy and config.privacy != plan.options.privacy:
        notes.append(f"this site's own privacy holds: {config.privacy}")
    spec = RunSpec(
        plan.method, known, lambda: make(0), plan.head, plan.training, plan.options.seed, task, privacy=privacy
    )
    work: Work
    if request.function:
        new_state = folder / request.new_state if request.new_state else None
        work = Task(request.round, 0, request.number, request.function, before, new_state, request.measure)
    else:
        new_state = None
        work = Evaluation(request.round - 1, 0, request.number, before, folder if request.models else None)
    device = open_device(device_names(config.device)[0])
    outcome = ClientRunner(spec, config.threads, device).perform(work, message)
    if outcome.trace:
        print(outcome.trace)  # in the site's own log; the server is told less
    if outcome.unmeasured:
        notes.append(f"could not be measured: {outcome.unmeasured}")
    if outcome.has_state and new_state is not None:
        settle(new_state)
    if outcome.model:
        os.replace(folder / outcome.model, folder / "personal.safetensors")
        settle(folder / "personal.safetensors")
        about = {"client": config.name, "run": request.run, "method": plan.label, "after_round": request.round - 1}
        write_json(folder / "personal.json", {**about, **outcome.scores})
        keep_loadable(config, folder, replace(plan, task=task), known, request, outcome.model)
    made = Answer(
        client=config.name,
        has_state=outcome.has_state,
        flops=float(outcome.flops),
        seconds=float(outcome.seconds),
        error=_without_values(outcome.error, outcome.trace)[:MOST_TEXT],
        model=outcome.model,
        notes="\n".join(notes)[:MOST_TEXT],
        released=outcome.released,
        one_class=outcome.one_class,
    )
    return made, outcome


def unable(name: str, error: Exception) -> SiteInfo:
    """The `SiteInfo` of a site that cannot take part."""
    why = _without_values(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))
    return SiteInfo(name, "", "", "", 0, 0, 0, 0, why[:MOST_TEXT])


def refused(config: SiteConfig, error: Exception) -> Answer:
    why = _without_values(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))
    return Answer(config.name, False, 0.0, 0.0, f"{config.name} refused: {why}"[:MOST_TEXT], "", "")


def _check(config: SiteConfig, plan: Plan, request: Request) -> None:
    if request.client != config.name:
        raise Malformed(f"this is '{config.name}'; the message is for '{request.client}'.")
    if request.function and not is_client_function(plan.method, request.function):
        raise Malformed(f"'{request.function}' is not a client function of {plan.label}: nothing else is called here.")
    if not RUN.fullmatch(request.run):
        raise Malformed(f"'{request.run}' is not the name of a run.")
    for name in (request.state, request.new_state, *request.keep.split()):
        if name and not STATE.fullmatch(name):
            raise Malformed(f"'{name}' is not the name of a state.")
    if not 0 <= request.number < len(plan.clients) or request.round < 1:
        raise Malformed(
            f"client number {request.number} and round {request.round} must be at least 0 and 1, and the number below "
            f"{len(plan.clients)}."
        )


def _check_task(plan: Plan, request: Request, mine: Federation) -> None:
    """Raise if the run's task is not the one that this site has targets for."""
    kind = kind_of(plan.task)
    if (kind and kind != mine.arrays.task) or bool(request.classes) != plan.task.has_classes:
        raise Malformed(f"this site has the targets of a {mine.arrays.task}; the run's task is {plan.task.kind}.")
    if not mine.classes and request.outputs != mine.outputs:
        raise Malformed(f"this site has {mine.outputs} targets; the run has {request.outputs}.")


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _without_values(text: str, trace: str) -> str:
    """The part of an error's text that may leave the site. fedkin's own messages contain no value of an example; others
    might."""
    frames = re.findall(r'File "([^"]+)", line', trace)
    if not text or not frames or Path(frames[-1]).is_relative_to(PACKAGE):
        return text
    kind = re.search(r"(?:^|: )([A-Za-z_.]*(?:Error|Exception|Warning|Interrupt|Iteration))(?::|$)", text)
    where = text[: kind.start(1)] if kind else ""
    return f"{where}{kind[1] if kind else 'an error'}; the details are in the site's own log"
