"""Networks of the papers, by name; any `nn.Module` of the user's works as well."""

from __future__ import annotations

from fedkin.registry import Entry

MODELS: dict[str, Entry] = {
    "mlp": Entry("fedkin.models.mlp:mlp", "FC 64, FC classes: digits and quick tests"),
    "fcnn1": Entry("fedkin.models.mlp:fcnn1", "FC 200, FC classes: PFLIC's FCNN-1"),
    "fcnn2": Entry("fedkin.models.mlp:fcnn2", "FC 200, FC 100, FC classes: PFLIC's FCNN-2"),
    "cnn2": Entry("fedkin.models.cnn:cnn2", "2 conv 5x5 + 2 FC: PFLIC's CNN"),
    "cnn3": Entry("fedkin.models.cnn:cnn3", "3 conv 3x3 + 2 FC: FedCEDAR on MNIST and SVHN"),
    "cnn3fc3": Entry("fedkin.models.cnn:cnn3fc3", "3 conv 3x3 + 3 FC: pFedGAT"),
    "cnn6": Entry("fedkin.models.cnn:cnn6", "6 conv 3x3 + 2 FC: FedCEDAR on CIFAR-10"),
    "lenet": Entry("fedkin.models.cnn:lenet", "2 conv 5x5 + 3 FC: DC-PFL"),
    "har": Entry("fedkin.models.har:har", "2 conv1d + 2 FC: UCI HAR windows"),
}
