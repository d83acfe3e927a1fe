"""Networks by name. A user's own `nn.Module` works as well."""

from __future__ import annotations

from fedkin.registry import Entry

MODELS: dict[str, Entry] = {
    "logistic": Entry("fedkin.models.mlp:logistic", "FC classes: logistic regression"),
    "mlp_small": Entry("fedkin.models.mlp:mlp_small", "FC 16, FC classes: small tables"),
    "mlp": Entry("fedkin.models.mlp:mlp", "FC 64, FC classes: digits and quick tests"),
    "fcnn1": Entry("fedkin.models.mlp:fcnn1", "FC 200, FC classes: PFLIC's FCNN-1"),
    "fcnn2": Entry("fedkin.models.mlp:fcnn2", "FC 200, FC 100, FC classes: PFLIC's FCNN-2"),
    "cnn2": Entry("fedkin.models.cnn:cnn2", "2 conv 5x5 + 2 FC: PFLIC's CNN"),
    "cnn3": Entry("fedkin.models.cnn:cnn3", "3 conv 3x3 + 2 FC: FedCEDAR on MNIST and SVHN"),
    "cnn3fc3": Entry("fedkin.models.cnn:cnn3fc3", "3 conv 3x3 + 3 FC: pFedGAT"),
    "cnn6": Entry("fedkin.models.cnn:cnn6", "6 conv 3x3 + 2 FC: FedCEDAR on CIFAR-10"),
    "cnn_bn": Entry("fedkin.models.cnn_bn:cnn_bn", "3 conv 3x3 with batch norm + 2 FC: FedBN"),
    "resnet": Entry("fedkin.models.resnet:resnet", "ResNet with batch norm, depth 8, 14, 18 or 20"),
    "lenet": Entry("fedkin.models.cnn:lenet", "2 conv 5x5 + 3 FC: DC-PFL"),
    "har": Entry("fedkin.models.har:har", "2 conv1d + 2 FC: UCI HAR windows"),
}
