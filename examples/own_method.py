"""Your own method: each client keeps its head (its last layer) and shares the rest, as in FedPer. To check it:

fedkin verify examples/own_method.py:KeepTheHead
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import fedkin
from fedkin import Client, Message, Method, Replies, Reply, Server
from fedkin.bounds import FractionBelow1


@dataclass(frozen=True)
class KeepTheHead(Method):
    server_momentum: FractionBelow1 = 0.0
    """Momentum of the shared body at the server; 0 is the plain mean."""

    def init(self, fed: Server) -> dict:
        body = fed.initial(0)[fed.layout.body]
        return {"body": body, "velocity": torch.zeros_like(body)}

    def send(self, state: dict, ids: Tensor) -> Message:
        return Message(shared=(state["body"],))

    def joined(self, client: Client, body: Tensor) -> Tensor:
        """The shared body with this client's own head."""
        vector = client.state.get("model", client.net.initial).clone()
        vector[client.net.layout.body] = body
        return vector

    def local(self, client: Client, message: Message) -> Reply:
        model = fedkin.sgd(client, self.joined(client, message.shared[0]))
        return Reply({"model": model}, (model[client.net.layout.body],))

    def merge(self, state: dict, sent: Message, replies: Replies) -> dict:
        mean = replies.weights @ replies.body[0]
        velocity = self.server_momentum * state["velocity"] + mean - state["body"]
        return {"body": state["body"] + velocity, "velocity": velocity}

    def received(self, client: Client, message: Message) -> Tensor:
        return self.joined(client, message.shared[0])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Tensor:
        return trained().state["model"]


if __name__ == "__main__":
    clients = fedkin.federate("digits", partition="pathological", clients=10, classes_per_client=3)
    for method in (KeepTheHead(), "fedavg"):
        result = fedkin.run(method, clients, rounds=10)
        print(result.summary["method"], round(result.summary["personal"]["mean"], 3))
