"""Speed of own arrays against the built-in loader: the same images, the same work, taking turns in one process.

    python benchmarks/own_data.py [--turns 40] [--models cnn3,lenet,cnn_bn]

One client of 480 gray images of 28x28: its examples are fetched, then trained on for one epoch with batch 16, on one
thread, as a worker does it in every task. Once the images come as the mnist loader gives them (uint8), once as
`from_arrays` takes them (float32 [n, 1, 28, 28]). The ratio is own speed / loader speed.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

import fedkin
from fedkin.client.training import sgd
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Training

EXAMPLES, CLASSES = 480, 10


def federations() -> dict[str, fedkin.Federation]:
    rng = np.random.default_rng(0)
    count = EXAMPLES * 5 // 4
    images = rng.integers(0, 256, (count, 28, 28, 1), dtype=np.uint8)
    labels = np.arange(count) % CLASSES
    loader = fedkin.Arrays(images, labels, CLASSES, image=True, mean=(128.0,), std=(74.0,))
    own = fedkin.from_arrays(((images.astype(np.float32) - 128) / 74).transpose(0, 3, 1, 2), labels)
    return {
        name: fedkin.federate(arrays, partition="iid", clients=1, test=0.2, validation=0.0)
        for name, arrays in (("loader", loader), ("own", own))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--models", default="cnn3,lenet,cnn_bn")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    made = federations()
    assert torch.allclose(made["own"].data(0).x, made["loader"].data(0).x, atol=1e-5)
    for model in arguments.models.split(","):
        net = Network(maker(model, (1, 28, 28), CLASSES, 0, {})(0), made["own"].example)
        times: dict[str, list[float]] = {name: [] for name in made}
        for turn in range(arguments.turns + 1):
            for name in sorted(made, reverse=bool(turn % 2)):
                start = time.process_time()  # of this process alone: the machine may have other work
                client = Client({}, made[name].data(0), 0, net, Training(lr=0.01, epochs=1, batch_size=16))
                sgd(client, net.initial)
                if turn:  # the first turn warms up
                    times[name].append(time.process_time() - start)
        rate = {name: EXAMPLES / statistics.median(seconds) for name, seconds in times.items()}
        # turn by turn: a slow moment of the machine hits both
        ratio = statistics.median(a / b for a, b in zip(times["loader"], times["own"]))
        print(
            f"{model:8} loader {rate['loader']:7.0f} examples/s, own {rate['own']:7.0f} examples/s, "
            f"own / loader {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
