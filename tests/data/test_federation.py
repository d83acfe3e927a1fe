"""From arrays to clients with train, validation and test examples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.data import Arrays, from_arrays, from_folder, load
from fedkin.data.federation import Federation, federate

fingerprint = Federation.fingerprint


def table(examples: int, classes: int = 4, seed: int = 0, **more) -> Arrays:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, examples)
    return Arrays(rng.normal(size=(examples, 3)).astype(np.float32), y, classes=classes, **more)


def images(examples: int = 60, side: int = 8, channels: int = 3, **more) -> Arrays:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (examples, side, side, channels), dtype=np.uint8)
    mean, std = tuple(100.0 + c for c in range(channels)), tuple(50.0 + c for c in range(channels))
    return Arrays(x, np.arange(examples) % 4, classes=4, image=True, mean=mean, std=std, **more)


# ---- train, validation, test


@given(
    seed=st.integers(0, 1000),
    examples=st.integers(40, 400),
    clients=st.integers(1, 10),
    test=st.sampled_from([0.01, 0.2, 0.5, 0.9]),
    validation=st.sampled_from([0.0, 0.05, 0.09]),
    ordered=st.booleans(),
)
def test_parts_are_disjoint_and_cover_the_clients_examples(seed, examples, clients, test, validation, ordered):
    fed = federate(
        table(examples, seed=seed, ordered=ordered),
        partition="iid",
        clients=clients,
        seed=seed,
        test=test,
        validation=validation,
    )
    for split, own in zip(fed.splits, fed.partition.indices):
        together = np.concatenate([split.train, split.validation, split.test])
        assert sorted(together) == sorted(own)
        assert len(split.train) >= 1
        assert len(split.test) >= 1
        assert all((np.diff(part) > 0).all() for part in (split.train, split.validation, split.test))
    assert fed.sizes.tolist() == [len(s.train) for s in fed.splits]


@given(seed=st.integers(0, 1000), share=st.sampled_from([0.1, 0.2, 0.35]))
def test_test_examples_follow_the_clients_labels(seed, share):
    """Within rounding: a class is off by one example, and by its part of the other classes' rounding."""
    arrays = table(2000, classes=6, seed=seed)
    fed = federate(arrays, partition="dirichlet", clients=5, seed=seed, alpha=0.3, test=share, validation=0.1)
    for split, own in zip(fed.splits, fed.partition.indices):
        have = np.bincount(arrays.y[own], minlength=6)
        got = np.bincount(arrays.y[split.test], minlength=6)
        assert len(split.test) == round(share * len(own))
        assert (np.abs(got - share * have) <= 1 + have / len(own) * ((have > 0).sum() + 0.5)).all()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("examples", [2, 3, 4])
@pytest.mark.parametrize(("test", "validation"), [(0.2, 0.1), (0.01, 0.0), (0.05, 0.9), (0.9, 0.05), (0.5, 0.49)])
@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]])
def test_tiny_clients_can_learn_and_be_tested(ordered, examples, test, validation, labels):
    arrays = from_arrays(np.zeros((examples, 2)), labels[:examples], ordered=ordered)
    (split,) = federate(arrays, partition="iid", clients=1, test=test, validation=validation).splits
    assert min(len(split.train), len(split.test)) >= 1
    assert len(split.train) + len(split.validation) + len(split.test) == examples


@pytest.mark.parametrize("examples", [2, 3, 4, 7, 50])
@pytest.mark.parametrize(("test", "validation"), [(0.2, 0.1), (0.05, 0.9), (0.9, 0.05)])
def test_ordered_examples_are_cut_in_time_within_each_class(examples, test, validation):
    arrays = from_arrays(np.zeros((2 * examples, 1)), [0, 1] * examples, client=["a", "b"] * examples, ordered=True)
    fed = federate(arrays, partition="by_group", test=test, validation=validation)  # a has class 0, b has class 1
    for split in fed.splits:
        in_time = np.concatenate([split.train, split.validation, split.test])
        assert (np.diff(in_time) > 0).all(), "what is tested comes after what is learnt from"


def test_ordered_examples_of_every_class_are_tested():
    arrays = from_arrays(np.zeros((90, 1)), np.repeat([0, 1, 2], 30), client=["a"] * 90, ordered=True)
    (split,) = federate(arrays, partition="by_group").splits
    assert np.bincount(arrays.y[split.test]).tolist() == [6, 6, 6]
    for c in range(3):
        last, first = (part[arrays.y[part] == c] for part in (split.train, split.test))
        assert last.max() < first.min()


@pytest.mark.parametrize("samples", [None, 60])
def test_ordered_examples_are_cut_in_time_however_they_are_spread(samples):
    """Partitions shuffle; time goes on within a group (here: first all of a, then all of b)."""
    arrays = Arrays(np.zeros((400, 1)), np.arange(400) % 3, 3, group=np.repeat([0, 1], 200), ordered=True)
    fed = federate(arrays, partition="iid", clients=4, samples_per_client=samples)
    for split in fed.splits:
        for group in (0, 1):
            for c in range(3):
                train, test = (
                    part[(arrays.group[part] == group) & (arrays.y[part] == c)] for part in (split.train, split.test)
                )
                assert len(test)
                assert train.max() < test.min()


def test_one_example_is_too_few():
    arrays = from_arrays(np.zeros((5, 1)), [0] * 5, client=list("aaaab"))
    with pytest.raises(ValueError, match=r"Client b has 1 examples; .*use fewer clients, or leave its examples out"):
        federate(arrays, partition="by_group")


# ---- which examples


@pytest.mark.parametrize("ordered", [True, False])
def test_samples_per_client(ordered):
    arrays = table(1000, ordered=ordered)
    full = federate(arrays, partition="iid", clients=5)
    fed = federate(arrays, partition="iid", clients=5, samples_per_client=50)
    for split, own in zip(fed.splits, full.partition.indices):
        examples = np.concatenate([split.train, split.validation, split.test])
        assert len(examples) == len(set(examples)) == 50
        assert set(examples) <= set(own)
        share = np.bincount(arrays.y[examples], minlength=4) / 50
        whole = np.bincount(arrays.y[own], minlength=4) / len(own)
        if not ordered:
            np.testing.assert_allclose(share, whole, atol=0.04)


def test_samples_per_client_beyond_what_there_is_changes_nothing():
    arrays = table(100)
    plain, capped = (federate(arrays, partition="iid", clients=5, samples_per_client=s) for s in (None, 1000))
    assert fingerprint(plain) == fingerprint(capped)


def test_pool_train_leaves_the_official_test_part_alone():
    arrays = images(60, train=40)
    fed = federate(arrays, partition="iid", clients=4, pool="train")
    assert sorted(np.concatenate(fed.partition.indices)) == list(range(40))
    assert len(np.concatenate(federate(arrays, partition="iid", clients=4).partition.indices)) == 60


def test_number_of_clients_by_default():
    assert len(federate("digits", partition="iid")) == 20
    assert len(federate("synthetic", partition="by_group")) == 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"partition": "dirichelt"}, r"no partition 'dirichelt'. Did you mean dirichlet"),
        ({"pool": "test"}, "pool='test' must be 'all' .* or 'train'"),
        ({"pool": "train"}, "no official training part: use pool='all'"),
        ({"test": 0.0}, "test above 0, sum below 1"),
        ({"test": 0.5, "validation": 0.5}, "test above 0, sum below 1"),
        ({"samples_per_client": 1}, "at least 2 examples"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"partition": "iid", "alpha": 1.0}, "iid takes no options; given: alpha"),
        ({"partition": "dirichlet", "alhpa": 1.0}, "dirichlet takes alpha, minimum; given: alhpa"),
        ({"data": "synthetic", "partition": "rotated"}, "rotated turns square images"),
        ({"data": "digit"}, "Did you mean digits"),
        ({"partition": "by_group"}, "needs data with natural groups"),
    ],
)
def test_refusals(options, text):
    with pytest.raises(ValueError, match=text):
        federate(**{"data": "digits", **options})


def test_rotated_refuses_images_that_are_not_square():
    arrays = Arrays(np.zeros((20, 4, 6, 1), np.uint8), np.arange(20) % 2, classes=2, image=True)
    with pytest.raises(ValueError, match="square"):
        federate(arrays, partition="rotated", clients=4)


def test_the_description_makes_it_again():
    made = federate("digits", partition="pathological", clients=5, seed=3, classes_per_client=3, samples_per_client=40)
    d = dict(made.description)
    again = federate(**{k: v for k, v in d.items() if k != "partition_options"}, **d["partition_options"])
    assert fingerprint(again) == fingerprint(made)


# ---- examples as the network takes them


def test_normalization():
    arrays = images(40)
    fed = federate(arrays, partition="iid", clients=1)
    examples = fed.examples(0, np.arange(40))
    plain = (arrays.x.astype(float) - np.array(arrays.mean)) / np.array(arrays.std)
    np.testing.assert_allclose(examples.x.numpy(), plain.transpose(0, 3, 1, 2), atol=1e-5)
    assert (examples.x.dtype, examples.y.dtype) == (torch.float32, torch.int64)


def test_rotation_turns_the_images():
    arrays = images(40)
    fed = federate(arrays, partition="rotated", clients=4)
    straight = replace(fed, partition=replace(fed.partition, turns=None))
    for client in range(4):
        turned, plain = (f.examples(client, f.splits[client].train).x for f in (fed, straight))
        expected = np.rot90(plain.numpy(), client, axes=(2, 3))
        np.testing.assert_array_equal(turned.numpy(), expected)
    assert not torch.equal(turned, plain)


@pytest.mark.parametrize("partition", ["iid", "rotated"])
def test_images_are_channels_last_in_memory(partition):
    """Also those that were turned, and after the gather that shuffles them."""
    fed = federate(images(40), partition=partition, clients=4)
    for client in range(4):
        x = fed.data(client).x
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert x[torch.randperm(len(x))].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels", [1, 3])
def test_own_images_lie_in_memory_as_those_of_a_loader(channels):
    """Convolutions choose their kernel by the strides: gray images in another layout took 1.5 times as long."""
    loaded = images(20, channels=channels)
    own = from_arrays(loaded.x.transpose(0, 3, 1, 2).astype(np.float32), loaded.y)
    one, two = (federate(a, partition="iid", clients=1).data(0).x for a in (own, loaded))
    assert one.stride() == two.stride() == (64 * channels, 1, 8 * channels, channels)
    order = torch.randperm(len(one))
    assert one[order][:4].stride() == two[order][:4].stride()


def test_own_images_are_channels_last_and_otherwise_as_given():
    x = np.random.default_rng(0).normal(size=(20, 3, 8, 6))
    fed = federate(from_arrays(x, np.arange(20) % 2), partition="iid", clients=1)
    examples = fed.examples(0, np.arange(20)).x
    assert examples.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(examples.numpy(), x, rtol=1e-6)
    assert fed.shape == (3, 8, 6)


def test_examples_are_float32_whatever_the_arrays_are():
    arrays = Arrays(np.arange(20.0).reshape(10, 2), np.arange(10) % 2, classes=2)
    assert federate(arrays, partition="iid", clients=1).example.dtype == torch.float32


def test_test_examples_are_hidden_from_clients(digits: Federation):
    with pytest.raises(PermissionError, match="for the scorer only"):
        _ = digits.data(0).test
    assert torch.equal(digits.data(0, with_test=True).test.y, digits.test(0).y)


def test_counts_are_of_training_examples(digits: Federation):
    for client in range(len(digits)):
        assert digits.counts[client].tolist() == torch.bincount(digits.data(client).y, minlength=10).tolist()
    assert digits.mean_kld > 0


def test_the_example_fits_the_shape(digits: Federation):
    assert digits.example.shape == (1, *digits.shape) == (1, 1, 8, 8)


# ---- names and fingerprints


def test_names_are_the_users_where_a_client_is_one_of_theirs():
    arrays = from_arrays(np.zeros((60, 1)), np.arange(60) % 2, client=np.repeat(["york", "bath", "hull"], 20))
    assert federate(arrays, partition="by_group").names == ("bath", "hull", "york")
    # as many clients as names, but other examples: they are not these places
    natural = replace(arrays, own_clients=False)
    assert federate(natural, partition="iid", clients=3).names == ("client 0", "client 1", "client 2")


def own_groups(**more) -> Arrays:
    who = np.repeat(["york", "bath", "hull"], 20)
    return from_arrays(np.arange(60.0)[:, None], np.arange(60) % 2, client=who, **more)


def test_the_clients_that_the_data_names_are_the_clients():
    """They used to be dissolved into twenty random ones."""
    fed = federate(own_groups())
    assert fed.names == ("bath", "hull", "york")
    assert fed.description["partition"] == "by_group"
    assert len(federate("digits")) == 20
    facts = {(client, metric): value for client, metric, value in fed.facts()}
    assert facts[2, "name"] == "york"


def test_a_folder_keeps_its_clients(tmp_path):
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text("p,y\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    fed = federate(from_folder(tmp_path))
    assert fed.names == ("north", "south")


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "quantity"])
def test_own_clients_and_a_partition_are_refused(partition):
    with pytest.raises(ValueError, match=rf"bath, hull, york\); partition='{partition}' would spread"):
        federate(own_groups(), partition=partition)
    assert len(federate(own_groups(), partition="by_group", clients=3)) == 3


@pytest.mark.parametrize("clients", [1, 2, 6, 8])
@pytest.mark.parametrize("partition", [None, "by_group"])
def test_another_number_of_clients_than_the_data_has_is_refused(clients, partition):
    with pytest.raises(ValueError, match=rf"clients={clients}: the data has 3 clients \(bath, hull, york\)"):
        federate(own_groups(), clients=clients, partition=partition)


def test_hidden_groups_are_no_clients():
    assert len(federate("synthetic")) == 20
    assert len(federate("synthetic", partition="by_group", clients=8)) == 8


def test_a_named_client_splits_alone_as_in_company():
    """So that a site has the same test examples as in a simulation."""
    arrays = own_groups()
    whole = federate(arrays, seed=5)
    own = arrays.group == 2
    alone = federate(from_arrays(arrays.x[own], arrays.y[own], client=["york"] * 20), seed=5)
    for part in ("train", "validation", "test"):
        a, b = (f.arrays.x[getattr(f.splits[c], part)] for f, c in ((whole, 2), (alone, 0)))
        np.testing.assert_array_equal(a, b)


def test_majority_rate():
    y = [0] * 30 + [1] * 10 + [2] * 40
    arrays = from_arrays(np.zeros((80, 1)), y, client=["a"] * 40 + ["b"] * 40)
    fed = federate(arrays, validation=0.0)
    rates = {client: value for client, metric, value in fed.facts() if metric == "majority_rate"}
    tested = arrays.y[fed.splits[0].test]
    assert rates == {0: float((tested == 0).mean()), 1: 1.0}
    assert 0.5 < rates[0] < 1


def test_the_majority_is_that_of_the_training_examples():
    """A client whose test examples are mostly of another class: always predicting its majority is wrong there."""
    fed = federate(own_groups())
    split = replace(fed.splits[0], train=np.array([1, 3, 5, 6]), test=np.array([0, 2, 4, 7]))
    other = replace(fed, splits=(split, *fed.splits[1:]))
    assert other.majority_rate(0) == 0.25


# ---- regression


def test_a_regression_has_no_classes():
    rng = np.random.default_rng(0)
    arrays = from_arrays(rng.normal(size=(100, 3)), rng.normal(size=100), task="regression")
    fed = federate(arrays, clients=4)
    assert fed.description["partition"] == "iid"
    assert (fed.classes, fed.outputs, fed.mean_kld) == (0, 1, None)
    assert fed.data(0).y.dtype == torch.float32
    metrics = {metric for _, metric, _ in fed.facts()}
    assert "train_examples" in metrics
    assert not metrics & {"labels", "majority_rate", "mean_kld"}
    named = from_arrays(arrays.x, arrays.y, client=np.arange(100) % 5, task="regression", ordered=True)
    assert len(federate(named)) == 5
    for options in ({"partition": "dirichlet"}, {"partition": "shards"}):
        with pytest.raises(ValueError, match="spreads classes; a regression has none"):
            federate(arrays, clients=4, **options)


def test_a_named_client_has_its_own_examples():
    arrays = from_arrays(np.arange(60.0)[:, None], np.arange(60) % 2, client=np.repeat(["york", "bath", "hull"], 20))
    fed = federate(arrays, partition="by_group")
    assert set(fed.partition.indices[fed.names.index("york")]) == set(range(20))


def test_fingerprints_tell_federations_apart():
    arrays = table(200)
    base = fingerprint(federate(arrays, partition="iid", clients=4))
    assert base == fingerprint(federate(table(200), partition="iid", clients=4))
    others = [
        federate(arrays, partition="iid", clients=5),
        federate(arrays, partition="iid", clients=4, seed=1),
        federate(arrays, partition="iid", clients=4, test=0.3),
        federate(table(200, seed=1), partition="iid", clients=4),
        federate(replace(arrays, x=arrays.x + 1), partition="iid", clients=4),
        federate(replace(arrays, y=np.roll(arrays.y, 1)), partition="iid", clients=4),
    ]
    assert len({base, *map(fingerprint, others)}) == len(others) + 1
    # examples cut in time do not depend on what the classes are called: here the labels alone tell them apart
    timed = replace(arrays, ordered=True)
    renamed = replace(timed, y=(timed.y + 1) % 4)
    one, other = (federate(a, partition="iid", clients=4) for a in (timed, renamed))
    assert all(np.array_equal(s.test, t.test) for s, t in zip(one.splits, other.splits))
    assert fingerprint(one) != fingerprint(other)


def test_a_client_of_har_is_a_person_and_time_goes_on(real_data):
    fed = federate("har", partition="by_group", data_dir=real_data("har/har.npz"))
    assert len(fed) == 30
    assert fed.names[0] == "subject 1"
    for client in (0, 29):
        split = fed.splits[client]
        assert len(set(fed.arrays.group[np.concatenate([split.train, split.validation, split.test])])) == 1
        for c in range(6):
            early, late = (part[fed.arrays.y[part] == c] for part in (split.train, split.test))
            assert early.max() < late.min()


def test_loading_by_name_and_by_arrays_is_the_same():
    assert fingerprint(federate("digits", clients=5)) == fingerprint(federate(load("digits"), clients=5))
