"""`fedkin export DIR`: a client's model as ONNX, or as a torch.export program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedkin.cli import flags as parsing
from fedkin.cli.flags import UserError
from fedkin.cli.predict import opened


@dataclass(frozen=True)
class ExportFlags:
    client: str = ""
    """Name of the client whose model is exported."""
    out: Path | None = None
    """File to write: .onnx, or .pt2 for torch.export."""


def command(words: list[str]) -> int:
    about = "Write a client's model as ONNX or torch.export. The network takes preprocessed features."
    flags, names = parsing.parse_one(words, ExportFlags(), "fedkin export DIR", about)
    run = opened(names, "export")
    if not flags.client or flags.out is None:
        raise UserError(f"export needs --client NAME (one of {', '.join(run.clients[:8])}) and --out FILE.onnx.")
    print(f"{flags.client}'s model is in {run.export(flags.client, flags.out)}.")
    return 0
