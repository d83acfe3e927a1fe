"""What travels over Flower: arrays to the bit, fields with their types, and nothing that is not as it should be."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedkin.deploy import codec
from fedkin.deploy.codec import Answer, Malformed, Request, SiteInfo
from fedkin.protocol import Message
from fedkin.results.store import equal
from tests.deploy.memory import wired

REQUEST = Request(
    "0123456789abcdef", "north", 0, 1, "local", "", "client-000000-000001-1.safetensors", "", True, False, 10, "digits"
)
ANSWER = Answer("north", True, 12.0, 0.5, "", "", "")


ARRAYS = [
    torch.randn(3, 4),
    torch.randn(2, 3).double(),
    torch.tensor([2**62, -1]),
    torch.tensor([True, False]),
    torch.tensor(3, dtype=torch.uint8),
    torch.empty(0, 5),
    torch.empty(0, dtype=torch.long),
    torch.arange(12.0).reshape(3, 4).T,  # not contiguous
    torch.tensor([float("inf"), float("nan"), -0.0]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}-{list(a.shape)}".removeprefix("torch."))
def test_an_array_comes_back_to_the_bit(array):
    record = codec.encode_request(REQUEST, Message((array,), (array, array[:1] if array.dim() else array)))
    request, message = codec.decode_request(wired(record))
    assert request == REQUEST
    assert equal(message.shared[0], array.contiguous())
    assert equal(message.own[0], array.contiguous())
    assert len(message.own) == 2


def test_an_answer_comes_back():
    body = (torch.randn(5), torch.tensor(2))
    answer, back, scores = codec.decode_answer(wired(codec.encode_answer(ANSWER, body, {"personal": 0.5})))
    assert answer == ANSWER
    assert equal(list(back), list(body))
    assert scores == {"personal": 0.5}


def test_a_card_comes_back():
    info = SiteInfo("north", "own", "1 8 8", "abc", 10, 70, 10, 20)
    assert codec.decode_info(wired(codec.encode_info(info))) == info


def test_what_was_received_may_be_written_into():
    _, message = codec.decode_request(wired(codec.encode_request(REQUEST, Message((torch.ones(3),)))))
    message.shared[0].zero_()


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (Array("float32", (3,), codec.RAW, b"\0" * 11), "needs 12 bytes; 11 came"),
        (Array("float32", (2**40,), codec.RAW, b"\0" * 4), "needs 4398046511104 bytes"),
        (Array("float32", (-1, -3), codec.RAW, b"\0" * 12), "whole numbers from 0"),
        (Array("object", (1,), codec.RAW, b"\0" * 8), "dtype 'object'"),
        (Array("bfloat16", (1,), codec.RAW, b"\0" * 2), "dtype 'bfloat16'"),
        (Array("float32", (1,), "numpy.ndarray", b"\0" * 4), "came as 'numpy.ndarray'"),
        (Array("bool", (2,), codec.RAW, b"\1\2"), "other bytes than 0 and 1"),
    ],
)
def test_an_array_that_is_not_what_it_says_is_refused(array, word):
    record = codec.encode_answer(ANSWER, (), {})
    record["arrays"] = ArrayRecord({"body.0": array})
    with pytest.raises(Malformed, match=word):
        codec.decode_answer(record)


def test_an_array_that_cannot_be_sent_says_so():
    with pytest.raises(Malformed, match="bfloat16 cannot be sent; allowed: float32"):
        codec.pack(torch.ones(2, dtype=torch.bfloat16))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_server_takes_no_reply_that_is_not_finite(bad):
    with pytest.raises(Malformed, match="NaN or infinity"):
        codec.decode_answer(codec.encode_answer(ANSWER, (torch.tensor([1.0, bad]),), {}))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"round": "1"}, "Request.round is a str; expected int"),
        ({"round": True}, "Request.round is a bool; expected int"),
        ({"more": 1}, "more came"),
        ({"version": codec.VERSION + 1}, "different version"),
    ],
)
def test_fields_are_checked(change, word):
    record = codec.encode_request(REQUEST, Message())
    record["fields"] = ConfigRecord({**dict(record["fields"]), **change})
    with pytest.raises(Malformed, match=word):
        codec.decode_request(record)


def test_a_missing_field_or_record_is_refused():
    record = codec.encode_request(REQUEST, Message())
    record["fields"] = ConfigRecord({k: v for k, v in record["fields"].items() if k != "run"})
    with pytest.raises(Malformed, match="has the fields run"):
        codec.decode_request(record)
    with pytest.raises(Malformed, match="no arrays"):
        codec.decode_request(RecordDict())
    with pytest.raises(Malformed, match="no fields"):
        codec.decode_info(RecordDict())


@pytest.mark.parametrize("names", [["body.1"], ["body.0", "evil.0"], ["body.0", "body.00"]])
def test_arrays_under_other_names_are_refused(names):
    record = codec.encode_answer(ANSWER, (), {})
    record["arrays"] = ArrayRecord({name: codec.pack(torch.ones(1)) for name in names})
    with pytest.raises(Malformed, match=r"not numbered from 0|Unknown arrays"):
        codec.decode_answer(record)


def test_unknown_scores_are_refused():
    with pytest.raises(Malformed, match="the score salary"):
        codec.decode_answer(codec.encode_answer(ANSWER, (), {"salary": 1.0}))


@pytest.mark.slow
def test_a_thousand_sites():
    """Requests and answers over the bytes that Flower sends: none is mixed up, and the sum is exact."""
    vector, total = torch.linspace(-1, 1, 100), torch.zeros(100, dtype=torch.float64)
    for site in range(1000):
        request = wired(codec.encode_request(REQUEST._replace(number=site), Message((vector,), ())))
        came, message = codec.decode_request(request)
        assert came.number == site
        answer = wired(codec.encode_answer(ANSWER, (message.shared[0] + site,), {"personal": 0.5}))
        total += codec.decode_answer(answer)[1][0].double()
    assert torch.equal(total, sum((vector + site).double() for site in range(1000)))
