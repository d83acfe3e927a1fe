"""The local server: loopback only, reads only, and copes with runs that begin, end and start over."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import struct
import threading

import pytest

from fedkin.report import page, watch
from fedkin.report.page_data import MOST_ROUNDS, by_round
from fedkin.report.watch import Feed, server
from fedkin.results import history as histories
from fedkin.results.history import ALL, History

pytestmark = pytest.mark.processes


@pytest.fixture
def ask(tmp_path):
    """Asks a server that watches tmp_path. `ask.close()` returns when all questions are answered."""
    made = server([tmp_path], 0, cite=lambda names: f"cites {', '.join(names)}")
    made.daemon_threads = False  # so that closing waits for them
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()

    def asked(path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", made.server_port)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def close():
        made.shutdown()
        made.server_close()
        thread.join()

    asked.address, asked.close = made.server_address, close
    yield asked
    close()


def copy(comparison, name, folder):
    for file in ("config.json", "history.jsonl"):
        shutil.copy(comparison / name / "seed-0" / file, folder / file)


def test_page_and_news(ask, comparison, tmp_path):
    status, text = ask("/")
    assert status == 200
    assert "No run in" in text
    assert ask("/data.json")[0] == 204
    copy(comparison, "fedavg", tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    status, text = ask("/")
    assert status == 200
    assert '<script type="application/json" id="data">' in text
    status, text = ask("/data.json")
    data = json.loads(text)
    assert (status, data["live"], data["bibtex"]) == (200, True, "cites fedavg")
    assert ask(f"/data.json?since={data['version']}")[0] == 204, "no news"
    with open(tmp_path / "history.jsonl", "a") as f:
        f.write(json.dumps({"round": 9, "client": 0, "metric": "personal", "value": 0.5, "scope": "round"}) + "\n")
    status, text = ask(f"/data.json?since={data['version']}")
    assert status == 200
    assert json.loads(text)["methods"][0]["runs"][0]["rounds"] == 9
    copy(comparison, "local", tmp_path)  # started over with another method
    assert json.loads(ask("/data.json")[1])["methods"][0]["name"] == "local"
    (tmp_path / "history.jsonl").unlink()
    assert ask("/data.json")[0] == 204
    assert {p for p in tmp_path.rglob("*")} == {p for p in before if p.name != "history.jsonl"}, "nothing was written"


def test_only_this_machine_and_only_reading(ask, tmp_path):
    assert ask.address[0] == "127.0.0.1"
    assert ask("/", Host="evil.example")[0] == 403
    assert ask("/data.json", Host="evil.example:80")[0] == 403
    assert ask("/", Host="localhost:1")[0] == 200
    for method in ("POST", "PUT", "DELETE"):
        assert ask("/", method)[0] == 501
    for path in ("/config.json", "/../config.json", "/history.jsonl", "/%2e%2e/"):
        assert ask(path)[0] == 404


def test_a_broken_file_is_told_and_not_fatal(ask, comparison, tmp_path):
    copy(comparison, "fedavg", tmp_path)
    (tmp_path / "config.json").write_text('{"half')
    status, text = ask("/data.json")
    assert status == 503
    assert "JSONDecodeError" in text
    copy(comparison, "fedavg", tmp_path)
    assert ask("/data.json")[0] == 200


def test_a_reader_that_leaves_is_no_error(ask, comparison, tmp_path, capfd):
    copy(comparison, "fedavg", tmp_path)
    for _ in range(5):
        with socket.create_connection(ask.address) as connection:
            connection.sendall(b"GET /data.json HTTP/1.0\r\nHost: localhost\r\n\r\n")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # gone at once
    assert ask("/data.json")[0] == 200
    ask.close()
    assert capfd.readouterr().err == ""


def test_a_taken_port_gives_way(tmp_path):
    with server([tmp_path], 0) as one, server([tmp_path], one.server_port) as two:
        assert two.server_port != one.server_port


# ---- long runs: what is counted is work, not seconds
CLIENTS = 2


def long_run(folder, rounds):
    """A run's folder with so many rounds, as the recorder would have written it. Returns the number of records."""
    folder.mkdir(exist_ok=True)
    options = {"seed": 0, "rounds": rounds}
    config = {"label": "fedavg", "options": options, "federation": {"data": "digits"}, "method": {}}
    (folder / "config.json").write_text(json.dumps(config))
    history = History(folder / "history.jsonl")
    for client in range(CLIENTS):
        history.add(0, client, "train_examples", 40)
    for number in range(1, rounds + 1):
        for client in range(CLIENTS):
            history.add(number, client, "bytes_up", 10)
            history.add(number, client, "personal", number / rounds, ALL)
    history.close()
    return CLIENTS + 2 * CLIENTS * rounds


@pytest.fixture
def lines_read(monkeypatch):
    """The numbers of the lines that were decoded, in this order."""
    seen, decode = [], histories._record
    monkeypatch.setattr(histories, "_record", lambda *a: (seen.append(a[1]), decode(*a))[1])
    return seen


def plain(data):
    return {k: v for k, v in data.items() if k not in ("live", "version", "reading")}


def test_a_long_run_is_read_in_slices_and_each_record_once(tmp_path, monkeypatch, lines_read):
    monkeypatch.setattr(watch, "SLICE", 100)
    records = long_run(tmp_path, 120)
    feed = Feed([tmp_path], lambda names: "", clock=lambda: 0.0)
    versions, parts = [], []
    while "reading" in (data := feed.now()):
        versions.append(data["version"])
        parts.append(data["reading"])
        assert len(lines_read) == 100 * len(parts), "an answer costs one slice"
        assert data["methods"][0]["runs"][0]["rounds"] == max(0, (100 * len(parts) - CLIENTS + 3) // 4)
    assert lines_read == list(range(1, records + 1))
    assert len(set(versions)) == len(versions) == records // 100, "the page sees that there is more"
    assert parts == sorted(set(parts))
    assert plain(data) == plain(page.build([tmp_path]))
    lines_read.clear()
    assert feed.now() is data
    assert not lines_read
    with open(tmp_path / "history.jsonl", "a") as f:
        f.write(json.dumps({"round": 121, "client": 0, "metric": "bytes_up", "value": 10}) + "\n" + '{"rou')
    assert feed.now()["methods"][0]["runs"][0]["rounds"] == 121
    assert lines_read == [records + 1], "only what is new is read"


@pytest.mark.parametrize("change", ["another run", "cut", "another config"])
def test_a_run_that_is_started_over_is_read_again(tmp_path, monkeypatch, lines_read, change):
    """Also in the same file, and where it is longer than before."""
    monkeypatch.setattr(watch, "SLICE", 40)
    long_run(tmp_path, 20)
    feed = Feed([tmp_path], lambda names: "", clock=lambda: 0.0)
    feed.now()
    before = (tmp_path / "history.jsonl").read_bytes()
    if change == "another run":
        (tmp_path / "history.jsonl").write_bytes(before.replace(b"0.", b"0.1") + before)
    elif change == "cut":
        (tmp_path / "history.jsonl").write_bytes(before[: before.index(b"\n", 200) + 1])
    else:
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "label": "fedprox"}))
    while "reading" in (data := feed.now()):
        pass
    assert plain(data) == plain(page.build([tmp_path]))
    assert lines_read[40] == 1


def test_a_damaged_record_is_told_and_read_again_once_it_is_mended(tmp_path):
    long_run(tmp_path, 3)
    sound = (tmp_path / "history.jsonl").read_bytes()
    (tmp_path / "history.jsonl").write_bytes(sound + b'{"round": 4, "client": 0, "metric": "mixing", "value": 1}\n')
    feed = Feed([tmp_path], lambda names: "")
    for _ in range(2):
        with pytest.raises(ValueError, match="content that fedkin did not write"):
            feed.now()
    (tmp_path / "history.jsonl").write_bytes(sound)
    assert plain(feed.now()) == plain(page.build([tmp_path]))


def test_the_page_of_a_long_run_has_so_many_rounds_and_no_more(tmp_path):
    rounds = 3 * MOST_ROUNDS
    long_run(tmp_path, rounds)
    (method,) = page.build([tmp_path])["methods"]
    curve = method["curves"]["personal"]
    assert len(curve["round"]) <= MOST_ROUNDS
    assert (curve["round"][0], curve["round"][-1]) == (1, rounds)
    assert curve["mean"] == [round(r / rounds, 5) for r in curve["round"]]
    assert method["clients"]["personal"] == [[round(r / rounds, 5)] * CLIENTS for r in method["clients"]["rounds"]]
    assert sum(method["costs"]["up"]) == pytest.approx(10 * CLIENTS * rounds)
    assert set(method["evaluated"]) <= set(method["rounds"])


class Counting(dict):
    """Counts how often one of its entries was looked at."""

    looks = 0

    def get(self, *arguments):
        self.looks += 1
        return super().get(*arguments)

    def __iter__(self):
        for key in super().__iter__():
            self.looks += 1
            yield key


def test_costs_take_linear_time():
    tables = {size: Counting(dict.fromkeys(range(1, size + 1), 1.0)) for size in (100, 400)}
    for size, table in tables.items():
        assert by_round([table], range(1, size + 1)) == [1.0] * size
    assert tables[400].looks <= 5 * tables[100].looks
