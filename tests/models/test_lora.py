"""LoRA on any module through `peft`: only the trained matrices travel."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import fedkin
from fedkin.models.network import Network, build

pytest.importorskip("peft", reason="peft is not installed: pip install 'fedkin[lora]'")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from lora import LENGTH, WIDTH, made_tokens, with_lora

TRAINED = 2 * 2 * 4 * WIDTH + WIDTH * 3 + 3  # rank 4, two matrices each at query and value; the classifier


@pytest.fixture(scope="module")
def tokens():
    return made_tokens(clients=4, examples=40)


def test_the_vector_is_what_is_trained(tokens):
    net = Network(build(lambda: with_lora((LENGTH,), 3), 0), tokens.example)
    assert net.layout.size == net.layout.parameters == TRAINED
    assert {piece.name.split(".")[-2] for piece in net.layout.pieces} == {"default"}
    assert "classifier" in net.layout.layers[net.layout.head_layer].name


@pytest.mark.parametrize("method", ["fedavg-ft", "fedcedar", "fedrep", "ditto"])
def test_methods_train_it_and_count_what_travels(tokens, method, tmp_path):
    settings = {"rounds": 2, "epochs": 2, "lr": 0.01, "optimizer": "adamw", "engine": "serial", "evaluate_every": 1}
    run = fedkin.run(method, tokens, model=with_lora, out=tmp_path, **settings)
    assert not list(run.history.select("dropped"))
    body = 0 if method != "fedrep" else WIDTH * 3 + 3  # FedRep's head stays at home
    assert run.summary["bytes_up"] == 4 * (TRAINED - body) * 2 * 4
    losses = [sum(run.history.values("personal_loss", round=r).values()) for r in (1, 2)]
    assert losses[1] < losses[0]
    x = tokens.test(1).x
    again = fedkin.load(tmp_path)
    assert torch.equal(again.predict_scores(1, x), run.predict_scores(1, x))
