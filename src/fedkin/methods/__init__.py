"""Methods by name. One method, one file, both sides; a variant is a preset of its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedkin.registry import Entry, load_path, lookup

if TYPE_CHECKING:
    from fedkin.protocol import Method

METHODS: dict[str, Entry] = {
    "local": Entry(
        "fedkin.methods.local:Local",
        "each client alone",
        paper="",
        travels="nothing",
        stays="model",
    ),
    "fedavg": Entry(
        "fedkin.methods.fedavg:FedAvg",
        "one model, the mean of the clients' models",
        paper="McMahan et al., AISTATS 2017",
        travels="model both ways",
        stays="nothing",
    ),
    "fedavg-ft": Entry(
        "fedkin.methods.fedavg:FedAvg",
        "FedAvg, each client fine-tunes the model before use",
        preset={"fine_tune": True},
        paper="McMahan et al., AISTATS 2017",
        travels="model both ways",
        stays="nothing",
    ),
    "fedprox": Entry(
        "fedkin.methods.fedprox:FedProx",
        "FedAvg with a proximal term and stragglers that are kept",
        paper="Li et al., MLSys 2020",
        travels="model both ways",
        stays="nothing",
    ),
}


def method(name: str, **fields: Any) -> Method:
    """A method by its name, or by `file.py:Class` for one of your own."""
    if ":" in name:
        made: Method = load_path(name)(**fields)
        return made
    entry = lookup(METHODS, name, "method")
    made = entry.load()(**{**entry.preset, **fields})
    return made
