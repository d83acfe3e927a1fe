"""How errors of clients are worded, and reported once if many clients have the same one."""

from __future__ import annotations

from collections.abc import Mapping

from fedkin.registry import own_line

NAMED = 8  # clients listed in one line


def where(round: int, client: int, hook: str, error: Exception | str) -> str:
    """Where an error happened and what it was, with the line if it is in a user's own file."""
    why = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    line = own_line(error) if isinstance(error, Exception) else ""
    return f"round {round}, client {client}, hook {hook}: {why}{f' ({line})' if line else ''}"


def by_reason(errors: Mapping[int, str]) -> dict[str, list[int]]:
    """The clients that have the same error, apart from their number in it."""
    found: dict[str, list[int]] = {}
    for client, why in errors.items():
        found.setdefault(why.replace(f", client {client},", ","), []).append(client)
    return found


def reported_once(errors: Mapping[int, str]) -> list[str]:
    """One line for each reason why clients were dropped."""
    out = []
    for reason, clients in by_reason(errors).items():
        if len(clients) == 1:
            out.append(f"client {clients[0]} dropped: {errors[clients[0]]}")
            continue
        more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
        out.append(f"{len(clients)} clients dropped ({', '.join(map(str, clients[:NAMED]))}{more}): {reason}")
    return out
