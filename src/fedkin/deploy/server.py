"""The ServerApp: the usual loop, with an engine whose clients are sites."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context
from flwr.app import Message as Letter
from flwr.serverapp import Grid, ServerApp

from fedkin.deploy.codec import Malformed, Request, SiteInfo, decode_answer, encode_request
from fedkin.deploy.directory import Node, NodeDirectory, pull, push, reason
from fedkin.deploy.gather import check_infos, gathered, name_of_run, preprocessing_of
from fedkin.deploy.lines import Lines, say
from fedkin.deploy.plan import Plan, kind_of, read
from fedkin.deploy.remote import RemoteFederation
from fedkin.deploy.secure import FEWEST, OVER, Secure, SecureSum, as_mean, flat, kinds_of, shapes_of
from fedkin.deploy.secure import decode as decode_secure
from fedkin.deploy.secure import encode as encode_secure
from fedkin.deploy.targets import UNSCALED, in_units_of
from fedkin.engine.checkpoint import Checkpoint
from fedkin.engine.loop import run
from fedkin.engine.round import NoReplies
from fedkin.engine.runner import Evaluation, Outcome, RunSpec, Task, Work
from fedkin.protocol import Message
from fedkin.results.files import write_json
from fedkin.results.folder import prepare
from fedkin.results.run import Run
from fedkin.task import Regression

PAUSE = 0.1  # seconds between two checks for replies
SILENCE = 5.0  # seconds without an answer from the superlink after which the history notes it
TRIES = 3  # a client whose process dies this many times in one exchange is given up for the round
PATIENCE = 10.0  # seconds before a node that Flower considers gone is asked again, unless it was restarted
NODE_UNAVAILABLE = 5  # Flower's code for a supernode that is gone

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    serve(grid, read(context.run_config))


def serve(grid: Grid, plan: Plan) -> Run:
    out = prepare(plan.out, "run")
    before = json.loads((out / "sites.json").read_text()) if (out / "sites.json").exists() else {}
    keys = {name: bytes.fromhex(site["key"]) for name, site in before.items() if site["key"]}
    directory = NodeDirectory(
        grid, plan.clients, notify=say, bind_keys=plan.bind_keys, keys=keys, max_examples=plan.max_examples,
        max_classes=plan.max_classes, task=kind_of(plan.task),
    )  # fmt: skip
    absent = gathered(directory, plan, before)
    prepared = ""
    if plan.fit:
        prepared = preprocessing_of(directory, plan, out, absent)
        directory.introduce_again(prepared)
        absent = gathered(directory, plan, before)
    infos = {name: SiteInfo(**site["card"]) for name, site in before.items()} | directory.infos
    check_infos(infos, plan, absent)
    sites = {name: {"card": info._asdict(), "key": directory.keys.get(name, b"").hex()} for name, info in infos.items()}
    write_json(out / "sites.json", sites, durable=True)
    remote = RemoteFederation(tuple(infos[name] for name in plan.clients), plan.secure)
    name = name_of_run(out)
    task = in_units_of(plan.task, prepared)
    if isinstance(task, Regression) and not task.scale:
        say(UNSCALED)
    return run(
        plan.method,
        remote,
        model=plan.model,
        model_options=plan.model_options,
        head=plan.head,
        task=task,
        training=plan.training,
        out=out,
        label=plan.label,
        options=plan.options,
        trackers=[Lines()],
        connect=lambda spec, checkpoint: Deployment(
            grid, directory, spec, checkpoint, name, plan.options.time_limit, prepared, plan.secure
        ),
    )


@dataclass
class Ask:
    """A task that was sent and is not answered yet."""

    task: Work
    name: str
    letter: Any
    """The task as a record, to be sent again unchanged."""
    node: Node | None = None
    message: str | None = None
    tries: int = 0
    avoid: tuple[Node | None, float] = (None, 0.0)
    """A node that Flower considers gone, and until when it is not asked: Flower still lists it for a while."""
    notes: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    answer: Secure | None = None
    """The site's part in a stage of a secure sum."""

    def again(self, why: str) -> None:
        self.notes.append(f"asked again: {why}")
        self.node = self.message = None


class Deployment:
    """The engine. A task is sent to the client's current node, and sent again if that node goes away. A task
    names the state it starts from, so that sending it twice does no harm."""

    def __init__(
        self,
        grid: Grid,
        directory: NodeDirectory,
        spec: RunSpec,
        checkpoint: Checkpoint,
        name: str,
        time_limit: float,
        preprocessing: str = "",
        secure: bool = False,
    ) -> None:
        self._preprocessing, self._secure = preprocessing, secure
        self._grid, self._directory, self._spec, self._book = grid, directory, spec, checkpoint
        self._name, self._limit = name, time_limit
        # reported once, with the first task: an interruption is part of a run's history
        self._news = [f"the server was started again after round {checkpoint.done}"] if checkpoint.done else []

    def run(self, tasks: Sequence[Work], message: Message) -> list[Outcome]:
        if self._secure and all(isinstance(task, Task) for task in tasks):
            return self._sum(tasks, message)
        names = self._spec.federation.names
        asks = [Ask(task, names[task.client], self._letter(task, message)) for task in tasks]
        return self._exchange(asks)

    def _exchange(self, asks: list[Ask]) -> list[Outcome]:
        for ask in asks:
            ask.notes += self._news
        self._news = []
        end = time.monotonic() + self._limit
        while (open_ := [ask for ask in asks if ask.outcome is None]) and time.monotonic() < end:
            silence = self._directory.look()
            if silence > SILENCE:
                self._silent(open_, silence)
            for ask in open_:
                self._follow(ask)
            self._send([ask for ask in open_ if ask.message is None])
            sent = {ask.message: ask for ask in open_ if ask.message is not None}
            begin = time.monotonic()
            replies = pull(self._grid, sent)
            if not replies and (silence := time.monotonic() - begin) > SILENCE:
                self._silent(open_, silence)
            for reply in replies:
                self._receive(sent[reply.metadata.reply_to_message_id], reply)
            if not replies:
                time.sleep(PAUSE)
        return [self._outcome(ask) for ask in asks]

    def _sum(self, tasks: Sequence[Work], message: Message) -> list[Outcome]:
        """The mean of all replies, as everybody's reply: a method that needs their mean alone makes the same of it.

        Those who are lost on the way are missing from it. Raises NoReplies if too few are left to open the sum."""
        names = {self._spec.federation.names[task.client]: task for task in tasks}
        outcomes: dict[str, Outcome] = {}
        total = SecureSum(names, secrets.token_hex(8))

        def stage(wanted: Mapping[str, Secure], message: Message) -> dict[str, Ask]:
            """Ask for one stage. Returns those that answered; why the others did not is in `outcomes`."""
            asks = []
            for name, secure in wanted.items():
                letter = self._letter(names[name], message)
                letter["secure"] = encode_secure(secure)
                asks.append(Ask(names[name], name, letter))
            for ask, outcome in zip(asks, self._exchange(asks)):
                before = outcomes.get(ask.name, outcome)
                outcomes[ask.name] = outcome._replace(notes=(*before.notes, *outcome.notes))
                if before.body:  # of the stage in which it worked
                    outcomes[ask.name] = before._replace(error=outcome.error, notes=outcomes[ask.name].notes)
            return {ask.name: ask for ask in asks if not outcomes[ask.name].error and ask.answer is not None}

        def answers(asks: Mapping[str, Ask]) -> dict[str, Secure]:
            return {name: ask.answer for name, ask in asks.items() if ask.answer is not None}

        nothing, sent = Message(), dict[str, Ask]()
        keys = answers(stage(total.keys(names), nothing))
        if not keys and not any(OVER in outcome.error for outcome in outcomes.values()):
            return [outcomes[name] for name in names]  # all failed, and none because of an earlier sum
        try:
            shares = answers(stage(total.shares(keys), nothing)) if len(keys) >= FEWEST else {}
            sent = stage(total.masked(shares), message) if len(shares) >= FEWEST else {}
            if len(sent) < FEWEST:
                raise Malformed(f"{len(sent)} sites sent their part; at least {FEWEST} are needed")
            bodies = {name: outcomes[name].body for name in sent}
            layouts = {name: (kinds_of(secure), shapes_of(bodies[name])) for name, secure in answers(sent).items()}
            kinds, shapes = next(iter(layouts.values()))
            if odd := [name for name, layout in layouts.items() if layout != (kinds, shapes)]:
                raise Malformed(f"{', '.join(odd)} replied with other shapes than the others")
            opened = stage(total.open(sent), nothing)
            mean = as_mean(total.total({name: flat(b) for name, b in bodies.items()}, answers(opened)), shapes, kinds)
        except Malformed as error:
            say(f"round {tasks[0].round}: no secure sum: {error}")
            for text in filter(None, (outcome.error for outcome in outcomes.values())):
                say(text)
            raise NoReplies from error
        for name, outcome in outcomes.items():
            absent = outcome.error or f"client {name} took no part in the sum"
            outcomes[name] = outcome._replace(body=mean if name in sent else (), error="" if name in sent else absent)
        return [outcomes[name] for name in names]

    def close(self) -> None:
        pass

    def _silent(self, asks: list[Ask], seconds: float) -> None:
        for ask in asks:
            ask.notes.append(f"the superlink did not answer for {seconds:.0f} s")

    def _letter(self, task: Work, message: Message) -> Any:
        federation = self._spec.federation
        request = Request(
            run=self._name,
            client=federation.names[task.client],
            number=task.client,
            # an evaluation is sent as a task without a function, in the round whose seed it uses
            round=task.round if isinstance(task, Task) else task.round + 1,
            function=task.function if isinstance(task, Task) else "",
            state=task.state.name if task.state else "",
            new_state=task.new_state.name if isinstance(task, Task) and task.new_state else "",
            keep=" ".join(sorted(self._book.kept(task.client))),
            measure=isinstance(task, Evaluation) or task.measure,
            models=isinstance(task, Evaluation) and task.models is not None,
            classes=federation.classes,
            data=federation.description["data"],
            preprocessing=self._preprocessing,
            outputs=0 if federation.classes else federation.outputs,
        )
        return encode_request(request, message.for_position(task.position))

    def _follow(self, ask: Ask) -> None:
        """Send the task again if its node was restarted or replaced."""
        now = self._directory.node(ask.name)
        if ask.message is None or now is None or now == ask.node:
            return  # a node that is merely gone may come back with the answer; if not, Flower says so
        if ask.node is not None and now.id == ask.node.id:
            ask.again("its supernode was restarted")
        else:
            ask.again(f"it came back as another node, {now.id}")

    def _send(self, asks: list[Ask]) -> None:
        now = time.monotonic()
        found = [(ask, self._directory.node(ask.name)) for ask in asks]
        ready = [(a, node) for a, node in found if node is not None and not (node == a.avoid[0] and now < a.avoid[1])]
        letters = [Letter(ask.letter, dst_node_id=node.id, message_type="train") for ask, node in ready]
        for (ask, node), sent in zip(ready, push(self._grid, letters)):
            if sent:
                if ask.avoid[0] is not None and node.id != ask.avoid[0].id:
                    ask.notes.append(f"it came back as another node, {node.id}")
                ask.node, ask.message, ask.avoid = node, sent, (None, 0.0)

    def _receive(self, ask: Ask, reply: Letter) -> None:
        if reply.has_error():
            if reply.error.code == NODE_UNAVAILABLE:
                ask.avoid = ask.node, time.monotonic() + PATIENCE
            else:
                ask.tries += 1
                if ask.tries >= TRIES:
                    ask.outcome = self._failed(ask, f"failed {TRIES} times, finally with {reason(reply)}")
                    return
            ask.again(reason(reply))
            return
        try:
            answer, body, scores = decode_answer(reply.content, self._spec.task)
            ask.answer = decode_secure(reply.content)
            if answer.client != ask.name:
                raise Malformed(f"the answer is from '{answer.client}'")
        except Malformed as error:
            ask.outcome = self._failed(ask, f"{type(error).__name__}: {error}")._replace(kind="bad")
            return
        notes = (*ask.notes, *answer.notes.splitlines())
        task = ask.task
        ask.outcome = Outcome(
            task.position, task.client, body, answer.has_state, scores, answer.flops, answer.seconds, answer.error,
            model=answer.model, notes=notes, released=answer.released, one_class=answer.one_class,
        )  # fmt: skip

    def _outcome(self, ask: Ask) -> Outcome:
        if ask.outcome is None:
            gone = " (it is not connected)" if self._directory.node(ask.name) is None else ""
            ask.outcome = self._failed(ask, f"did not answer within {self._limit:g} s{gone}")
        return ask.outcome

    def _failed(self, ask: Ask, why: str) -> Outcome:
        task = ask.task
        text = f"round {task.round}, client {ask.name}, hook {task.hook}: {why}"
        return Outcome(task.position, task.client, (), False, {}, 0.0, 0.0, text, notes=tuple(ask.notes))
