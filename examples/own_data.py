"""Your own data: arrays in memory, and the name of the client that each example belongs to."""

import numpy as np

import fedkin

rng = np.random.default_rng(0)
hospital = np.repeat(["north", "south", "east"], [150, 80, 40])
x = rng.normal(size=(270, 6)).astype("float32")
y = (x[:, 0] + np.where(hospital == "south", -1, 1) * x[:, 1] > 0).astype(int)  # the rule differs in the south

clients = fedkin.federate(fedkin.from_arrays(x, y, client=hospital), partition="by_group")
for name in ("local", "fedavg", "fedavg-ft"):
    result = fedkin.run(name, clients, model="mlp", rounds=20, lr=0.1)
    accuracy = result.history.values("personal", round=20)
    print(name, {clients.names[c]: round(a, 2) for c, a in accuracy.items()})
