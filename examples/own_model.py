"""Your own network: any nn.Module. Float buffers, such as batch norm's statistics, are averaged like parameters."""

from torch import nn

import fedkin


def network(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8 * shape[1] * shape[2], classes),
    )


clients = fedkin.federate("digits", partition="pathological", clients=10, classes_per_client=3)
result = fedkin.run("fedavg-ft", clients, model=network, rounds=10, lr=0.05)
print({kind: round(result.summary[kind]["mean"], 3) for kind in ("received", "personal")})
