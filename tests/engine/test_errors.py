"""Errors of clients in words: each reason once, with the clients that have it."""

from fedkin.engine.errors import reported_once, where


def test_a_reason_is_told_once():
    errors = {client: where(3, client, "local", "RuntimeError: no") for client in range(10)}
    errors[4] = where(3, 4, "local", "lost on the way")
    assert reported_once(errors) == [
        "9 clients dropped (0, 1, 2, 3, 5, 6, 7, 8 and 1 more): round 3, hook local: RuntimeError: no",
        "client 4 dropped: round 3, client 4, hook local: lost on the way",
    ]
