"""fedkin: personalized federated learning that is right, fast, real and visible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# The public names. They are imported on first use, so that `import fedkin` does not wait for torch.
_WHERE = {
    "Arrays": "fedkin.data",
    "Clients": "fedkin.protocol",
    "Data": "fedkin.protocol",
    "Federation": "fedkin.data.federation",
    "History": "fedkin.results.history",
    "Client": "fedkin.protocol",
    "Message": "fedkin.protocol",
    "Method": "fedkin.protocol",
    "Network": "fedkin.models.network",
    "Replies": "fedkin.protocol",
    "Reply": "fedkin.protocol",
    "Run": "fedkin.results.run",
    "Server": "fedkin.protocol",
    "Training": "fedkin.protocol",
    "UnusableReplies": "fedkin.protocol",
    "client_function": "fedkin.protocol",
    "Classification": "fedkin.task",
    "MultiLabel": "fedkin.task",
    "Regression": "fedkin.task",
    "Task": "fedkin.task",
    "load": "fedkin.results.run",
    "compare": "fedkin.results.compare",
    "federate": "fedkin.data.federation",
    "from_arrays": "fedkin.data",
    "from_dataset": "fedkin.data",
    "from_file": "fedkin.data",
    "from_folder": "fedkin.data",
    "from_frame": "fedkin.data",
    "method": "fedkin.methods",
    "run": "fedkin.engine.loop",
    "sgd": "fedkin.client.training",
    "verify": "fedkin.conformance",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"fedkin has no '{name}'; it has {', '.join(__all__)}.")
    import importlib

    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if TYPE_CHECKING:
    from fedkin.client.training import sgd as sgd
    from fedkin.conformance import verify as verify
    from fedkin.data import Arrays as Arrays
    from fedkin.data import from_arrays as from_arrays
    from fedkin.data import from_dataset as from_dataset
    from fedkin.data import from_file as from_file
    from fedkin.data import from_folder as from_folder
    from fedkin.data import from_frame as from_frame
    from fedkin.data.federation import Federation as Federation
    from fedkin.data.federation import federate as federate
    from fedkin.engine.loop import run as run
    from fedkin.methods import method as method
    from fedkin.models.network import Network as Network
    from fedkin.protocol import Client as Client
    from fedkin.protocol import Clients as Clients
    from fedkin.protocol import Data as Data
    from fedkin.protocol import Message as Message
    from fedkin.protocol import Method as Method
    from fedkin.protocol import Replies as Replies
    from fedkin.protocol import Reply as Reply
    from fedkin.protocol import Server as Server
    from fedkin.protocol import Training as Training
    from fedkin.protocol import UnusableReplies as UnusableReplies
    from fedkin.protocol import client_function as client_function
    from fedkin.results.compare import compare as compare
    from fedkin.results.history import History as History
    from fedkin.results.run import Run as Run
    from fedkin.results.run import load as load
    from fedkin.task import Classification as Classification
    from fedkin.task import MultiLabel as MultiLabel
    from fedkin.task import Regression as Regression
    from fedkin.task import Task as Task
