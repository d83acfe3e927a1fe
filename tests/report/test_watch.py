"""The local server: loopback only, reads only, and copes with runs that begin, end and start over."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import struct
import threading

import pytest

from fedkin.report.watch import server

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


def copy(comparison, name, place):
    for file in ("config.json", "history.jsonl"):
        shutil.copy(comparison / name / "seed-0" / file, place / file)


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
