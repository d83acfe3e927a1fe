"""Methods by name. One method, one file, both sides; a variant is a preset of its fields."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from fedkin.registry import Entry, construct, convert, field_types, load_path, lookup, parse_label, plug_ins

if TYPE_CHECKING:
    from fedkin.protocol import Method

METHODS: dict[str, Entry] = {
    "local": Entry(
        "fedkin.methods.local:Local",
        "each client trains alone",
    ),
    "fedavg": Entry(
        "fedkin.methods.fedavg:FedAvg",
        "one model: the mean of the clients' models",
    ),
    "fedavg-ft": Entry(
        "fedkin.methods.fedavg:FedAvg",
        "FedAvg; each client fine-tunes the model before use",
        preset={"fine_tune": True},
    ),
    "fedprox": Entry(
        "fedkin.methods.fedprox:FedProx",
        "FedAvg with a proximal term and stragglers that are kept",
    ),
    "fedcedar": Entry(
        "fedkin.methods.fedcedar:FedCEDAR",
        "clusters client models, propagates the centers over a graph, sends each cluster's model to its clients",
    ),
    "fedcedar-soft": Entry(
        "fedkin.methods.fedcedar:FedCEDAR",
        "FedCEDAR whose graph tells clusters apart: softmax of the cosines of centered centers",
        preset={"normalize": "softmax", "features": "centered", "temperature": 0.3},
    ),
    "fedcedar-memory": Entry(
        "fedkin.methods.fedcedar:FedCEDAR",
        "FedCEDAR soft, whose absent clients keep their cluster for ten rounds; the mean counts clients",
        preset={
            "normalize": "softmax",
            "features": "centered",
            "temperature": 0.3,
            "memory": 10,
            "weighting": "size",
        },
    ),
    "fedcedar-as1": Entry(
        "fedkin.methods.fedcedar:FedCEDAR",
        "FedCEDAR without clustering: every client is a node of the graph",
        preset={"clustering": False},
    ),
    "fedcedar-as2": Entry(
        "fedkin.methods.fedcedar:FedCEDAR",
        "FedCEDAR without a graph: plain cluster means",
        preset={"propagations": 0},
    ),
    "fedcedar-as3": Entry(
        "fedkin.methods.fedcedar:FedCEDAR",
        "FedCEDAR without precise distribution: everyone gets the mean of the clusters' models",
        preset={"precise": False},
    ),
    "pflic": Entry(
        "fedkin.methods.pflic:PFLIC",
        "clients choose one of k models that share a layer; then those with the largest losses take turns",
    ),
    "pflic-restarts": Entry(
        "fedkin.methods.pflic:PFLIC",
        "PFLIC from the best of three starts, which gives empty clusters the model of the client served worst",
        preset={"restarts": 3, "reseed_empty": True},
    ),
    "dcpfl": Entry(
        "fedkin.methods.dcpfl:DCPFL",
        "one group that splits as the loss flattens; layers aggregated at their own pace",
    ),
    "dcpfl-nola": Entry(
        "fedkin.methods.dcpfl:DCPFL",
        "DC-PFL without layer-wise aggregation",
        preset={"layerwise": False},
    ),
    "dcpfl-nodc": Entry(
        "fedkin.methods.dcpfl:DCPFL",
        "DC-PFL with fixed groups, cut at 0.8 of the tree's height",
        preset={"dynamic": False},
    ),
    "fedamp": Entry(
        "fedkin.methods.fedamp:FedAMP",
        "each client gets its own mean of all models, near ones counting more, and is pulled to it",
    ),
    "heurfedamp": Entry(
        "fedkin.methods.fedamp:FedAMP",
        "FedAMP with weights from the cosines of models and a fixed weight for oneself",
        preset={"heuristic": True},
    ),
    "perfedavg": Entry(
        "fedkin.methods.perfedavg:PerFedAvg",
        "one model from which a single gradient step at each client does well",
    ),
    "perfedavg-hf": Entry(
        "fedkin.methods.perfedavg:PerFedAvg",
        "Per-FedAvg with the Hessian as a difference of gradients",
        preset={"variant": "hf"},
    ),
    "scaffold": Entry(
        "fedkin.methods.scaffold:Scaffold",
        "FedAvg whose steps are corrected by control variates, so that clients do not drift apart",
    ),
    "ifca": Entry(
        "fedkin.methods.ifca:IFCA",
        "k models; each client takes the one with the least training loss and improves it",
    ),
    "ifca-shared": Entry(
        "fedkin.methods.ifca:IFCA",
        "IFCA with one body for all and k heads",
        preset={"share_body": True},
    ),
    "fednova": Entry(
        "fedkin.methods.fednova:FedNova",
        "FedAvg of changes, each divided by the client's number of steps",
    ),
    "pfedme": Entry(
        "fedkin.methods.pfedme:PFedMe",
        "personal models held near a global one that moves along their Moreau envelopes",
    ),
    "cfl": Entry(
        "fedkin.methods.cfl:CFL",
        "FedAvg that cuts a cluster in two when its clients' updates pull apart",
    ),
    "moon": Entry(
        "fedkin.methods.moon:MOON",
        "FedAvg whose clients keep their features near the received model and away from their previous one",
    ),
    "fedbn": Entry(
        "fedkin.methods.fedbn:FedBN",
        "FedAvg of everything but batch norm, which stays with each client",
    ),
    "fedsem": Entry(
        "fedkin.methods.fedsem:FedSEM",
        "several centers; each client belongs to the one nearest to its model and trains on from there",
    ),
    "fedrod": Entry(
        "fedkin.methods.fedrod:FedRoD",
        "a generic head trained with balanced classes, and a personal head that adds to it",
    ),
    "fedrod-hyper": Entry(
        "fedkin.methods.fedrod:FedRoD",
        "FedRoD whose personal heads are made from class frequencies by a shared hypernetwork",
        preset={"hyper": True},
    ),
    "sfl": Entry(
        "fedkin.methods.sfl:SFL",
        "models flow along a graph of clients; each is pulled to what arrives and to the mean of all",
    ),
    "sfl-star": Entry(
        "fedkin.methods.sfl:SFL",
        "SFL with a learned graph blended in (SFL*)",
        preset={"learned": True},
    ),
    "knnper": Entry(
        "fedkin.methods.knnper:KNNPer",
        "FedAvg whose predictions each client mixes with a vote of its nearest own examples",
    ),
    "pfedgat": Entry(
        "fedkin.methods.pfedgat:PFedGAT",
        "a graph attention network on the server decides who learns from whom; clients' losses train it",
    ),
    "pfedgat-v2": Entry(
        "fedkin.methods.pfedgat:PFedGAT",
        "pFedGAT whose attention can tell receivers apart: GATv2 on centered models, from a uniform start",
        preset={
            "attention": "gatv2",
            "features": "centered",
            "gat_optimizer": "adam",
            "gat_lr": 1e-3,
            "projection": "random",
            "projection_size": 1024,
            "start": "uniform",
            "prior": 0.1,
        },
    ),
    "pfedgat-direct": Entry(
        "fedkin.methods.pfedgat:PFedGAT",
        "pFedGAT without the network: the matrix of who learns from whom is learned directly",
        preset={"attention": "direct"},
    ),
    "pfedgat-v2-direct": Entry(
        "fedkin.methods.pfedgat:PFedGAT",
        "pfedgat-v2 without the network, with the same optimizer, rate and prior",
        preset={"attention": "direct", "gat_optimizer": "adam", "gat_lr": 1e-3, "prior": 0.1},
    ),
    "fedah": Entry(
        "fedkin.methods.fedah:FedAH",
        "each client learns, number by number, how much of the global head to take",
    ),
    "clusterfl": Entry(
        "fedkin.methods.clusterfl:ClusterFL",
        "personal models that a relaxed cluster indicator draws together, by ADMM",
    ),
    "clusterfl-kmeans": Entry(
        "fedkin.methods.clusterfl_kmeans:ClusterFLKMeans",
        "personal models pulled to the centers of k-means: ClusterFL as the DC-PFL paper reads it",
    ),
    "pfedbayes": Entry(
        "fedkin.methods.pfedbayes:PFedBayes",
        "Gaussians over networks: each client's own, held near a global one by their divergence",
    ),
    "pfedhn": Entry(
        "fedkin.methods.pfedhn:PFedHN",
        "a hypernetwork at the server makes each client's model",
    ),
    "pfedhn-pc": Entry(
        "fedkin.methods.pfedhn:PFedHN",
        "pFedHN whose clients keep their heads",
        preset={"personal_head": True},
    ),
    "clustered-sampling": Entry(
        "fedkin.methods.clustered_sampling:ClusteredSampling",
        "FedAvg that draws one participant from each of m urns, made by size",
    ),
    "clustered-sampling-2": Entry(
        "fedkin.methods.clustered_sampling:ClusteredSampling",
        "FedAvg that draws one participant from each of m urns of clients with similar updates",
        preset={"urns": "similarity"},
    ),
    "ditto": Entry(
        "fedkin.methods.ditto:Ditto",
        "FedAvg, plus a personal model at each client that is held near the global one",
    ),
    "apfl": Entry(
        "fedkin.methods.apfl:APFL",
        "each client mixes its own model with the global one, and learns how much",
    ),
    "pfedgraph": Entry(
        "fedkin.methods.pfedgraph:PFedGraph",
        "infers a graph from FedAvg's weights and the similarity of updates; each client gets its own mean",
    ),
    "fedfomo": Entry(
        "fedkin.methods.fedfomo:FedFomo",
        "each client moves toward those of a few downloaded models that do better on its validation examples",
    ),
    "fedrep": Entry(
        "fedkin.methods.fedrep:FedRep",
        "a shared body and personal heads: in each round the head is trained first, then the body",
    ),
    "fedper": Entry(
        "fedkin.methods.fedper:FedPer",
        "averages the lower layers; the last ones stay at each client; all are trained together",
    ),
    "fedala": Entry(
        "fedkin.methods.fedala:FedALA",
        "FedAvg whose clients learn how much of the global upper layers to take",
    ),
    "fedaghn": Entry(
        "fedkin.methods.fedaghn:FedAGHN",
        "layers mixed for each client by attention between updates, whose scalars are learned",
    ),
    "lg-fedavg": Entry(
        "fedkin.methods.lg_fedavg:LGFedAvg",
        "the lower layers stay at each client; the last ones are averaged",
    ),
    "fedbabu": Entry(
        "fedkin.methods.fedbabu:FedBABU",
        "trains only the body, under a fixed random head; clients fine-tune before use",
    ),
    "fedgroup": Entry(
        "fedkin.methods.fedgroup:FedGroup",
        "clients grouped once by the direction of their first update; FedAvg in each group",
    ),
    "fedavg-lpft": Entry(
        "fedkin.methods.fedavg_lpft:FedAvgLPFT",
        "FedAvg; each client trains the head first, then all of the model, before use",
    ),
    "feddbe": Entry(
        "fedkin.methods.feddbe:FedDBE",
        "FedAvg whose clients keep the bias of their features in a private vector, and share a mean feature",
    ),
    "pfedfda": Entry(
        "fedkin.methods.pfedfda:PFedFDA",
        "a shared body under a Gaussian classifier, whose means and covariance each client adapts",
    ),
    "fedpac": Entry(
        "fedkin.methods.fedpac:FedPAC",
        "FedRep with features held near common class centroids and heads combined for each client",
    ),
    "fedproto": Entry(
        "fedkin.methods.fedproto:FedProto",
        "personal models that exchange only the mean feature of each class",
    ),
    "floco": Entry(
        "fedkin.methods.floco:Floco",
        "one body and a simplex of heads, in which each client has its own region",
    ),
    "floco-plus": Entry(
        "fedkin.methods.floco:Floco",
        "Floco with a personal simplex that is held near the shared one (Floco+)",
        preset={"personal_epochs": 1},
    ),
    "fedas": Entry(
        "fedkin.methods.fedas:FedAS",
        "FedPer whose clients align the received body with their own, weighted by Fisher information",
    ),
    "fedcp": Entry(
        "fedkin.methods.fedcp:FedCP",
        "a policy network splits features between a global and a personal head, example by example",
    ),
    "gpfl": Entry(
        "fedkin.methods.gpfl:GPFL",
        "two views of the features: one guided by common category embeddings, one for the personal head",
    ),
    "kin": Entry(
        "fedkin.methods.kin:Kin",
        "the mean or a mixture of kin's models, a private model, and experts weighted on validation examples",
    ),
    "kin-lite": Entry(
        "fedkin.methods.kin:Kin",
        "kin at FedAvg's traffic and compute: the mean, and no private model",
        preset={"relation": "mean", "experts": ("received", "adjusted", "tuned", "neighbors")},
    ),
}


METHODS.update(plug_ins("fedkin.methods", METHODS))


def method(label: str, **fields: Any) -> Method:
    """Make a method from its name, or from `file.py:Class` for your own; fields may follow: `fedprox,mu=1`."""
    name, values = parse_label(label)
    values |= fields
    if ":" in name:
        return construct_own(load_path(name), name, values)
    if name.endswith(".py"):
        raise ValueError(f"'{name}' is a file: name the class in it too, {name}:ClassName.")
    entry = lookup(METHODS, name, "method")
    made: Method = construct(entry.load(), name, {**entry.preset, **values})
    return made


def split_training(label: str) -> tuple[str, dict[str, Any]]:
    """`ditto,lam=1,lr=0.1` → ("ditto,lam=1", {"lr": 0.1}): the method, and the settings of its training. A method's own
    field comes first if it has the name of such a setting."""
    from fedkin.protocol import Training

    name, values = parse_label(label)
    if not values:
        return label, {}
    kind = load_path(name) if ":" in name else lookup(METHODS, name, "method").load()
    own = field_types(kind) if is_dataclass(kind) else {}
    kinds = {key: kind for key, kind in field_types(Training).items() if key not in own}
    first, *options = label.split(",")
    kept = [option for option in options if option.partition("=")[0].strip().replace("-", "_") not in kinds]
    found = {key: convert(kinds[key], value, f"{key} of {name}") for key, value in values.items() if key in kinds}
    return ",".join([first, *kept]), found


def construct_own(kind: Any, name: str, values: dict[str, Any]) -> Method:
    """Make a user's own method. Raise if it is not a dataclass that is a `Method`."""
    from fedkin.protocol import Method

    if isinstance(kind, type) and not issubclass(kind, Method):
        raise ValueError(f"{name} is not a method: write class {name.rpartition(':')[2]}(fedkin.Method).")
    if isinstance(kind, type) and not is_dataclass(kind):
        raise ValueError(f"{name} is not a dataclass: put @dataclass(frozen=True) above the class.")
    made: Method = construct(kind, name, values)
    return made
