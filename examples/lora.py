"""LoRA through `peft` (pip install 'fedkin[lora]'): a frozen transformer, and small matrices that clients train.

Only what is trained travels. The frozen transformer stays on each machine, and all workers share its memory.

    python examples/lora.py
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import fedkin

WORDS, LENGTH, WIDTH = 40, 12, 32


class Transformer(nn.Module):
    """A small classifier of token sequences, standing in for a pretrained one."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.classifier = nn.Linear(WIDTH, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        y = self.first(x)
        x = x + nn.functional.scaled_dot_product_attention(self.query(y), self.key(y), self.value(y))
        x = x + self.outer(torch.relu(self.inner(self.second(x))))
        return self.classifier(x.mean(1))


def with_lora(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Rank-4 matrices beside the query and value layers, and a new classifier, are trained; the rest is frozen."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"], modules_to_save=["classifier"])
    return get_peft_model(Transformer(classes), config)


def made_tokens(clients: int = 6, examples: int = 60) -> fedkin.Federation:
    """Sequences whose class is the most frequent of three words; two groups of clients name it differently."""
    rng = np.random.default_rng(0)
    x = rng.integers(3, WORDS, (clients * examples, LENGTH))
    client = np.repeat(np.arange(clients), examples)
    y = rng.integers(0, 3, len(x))
    for i in range(len(x)):
        x[i, rng.choice(LENGTH, 5, replace=False)] = (y[i] + client[i] % 2) % 3
    return fedkin.federate(fedkin.from_arrays(x.astype(np.int64), y, client=client))


def main() -> None:
    run = fedkin.run(
        "fedavg-ft", made_tokens(), model=with_lora, rounds=5, epochs=2, optimizer="adamw", lr=0.01, evaluate_every=0
    )
    whole = sum(p.numel() for p in with_lora((LENGTH,), 3).parameters())
    travels = run.summary["bytes_up"] / run.config["options"]["rounds"] / len(run.clients) / 4
    print(f"accuracy {run.summary['personal']['mean']:.2f}; {travels:.0f} of {whole} numbers travel")


if __name__ == "__main__":
    main()
