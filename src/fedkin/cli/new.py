"""`fedkin new method NAME`: a method to start from, as a file, a test and a page that pass."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template

from fedkin.cli import flags as parsing
from fedkin.cli.flags import UserError


@dataclass(frozen=True)
class NewFlags:
    folder: Path = Path()
    """Folder for the files."""


def command(words: list[str]) -> int:
    about = (
        "Write a method to start from: NAME.py, which works as it is, test_NAME.py, which passes, and NAME.md, the "
        "method's page. Nothing is overwritten."
    )
    flags, names = parsing.parse_one(words, NewFlags(), "fedkin new method NAME", about)
    if len(names) != 2 or names[0] != "method":
        raise UserError(f"new takes the word 'method' and a name; given: {' '.join(names) or 'nothing'}.")
    module = names[1].lower().replace("-", "_")
    _check(names[1], module)
    kind = "".join(part.capitalize() for part in module.split("_"))
    files = {
        flags.folder / f"{module}.py": "method.py.txt",
        flags.folder / f"test_{module}.py": "test.py.txt",
        flags.folder / f"{module}.md": "page.md.txt",
    }
    if there := [str(path) for path in files if path.exists()]:
        raise UserError(f"Already there: {', '.join(there)}. Choose another name or folder.")
    flags.folder.mkdir(parents=True, exist_ok=True)
    for path, template in files.items():
        text = (resources.files("fedkin.cli") / "templates" / template).read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(name=module, Class=kind, command=module.replace("_", "-")))
    own = flags.folder / f"{module}.py"
    print(f"Wrote {', '.join(str(path) for path in files)}. Next:")
    print(f"  fedkin verify {own}:{kind}")
    print(f"  fedkin compare local fedavg {own}:{kind}")
    print(f"  python -m pytest {flags.folder / f'test_{module}.py'}")
    return 0


def _check(name: str, module: str) -> None:
    from fedkin.methods import METHODS

    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        raise UserError(f"'{name}' cannot be a Python module: use letters, digits and _, starting with a letter.")
    if module.replace("_", "-") in METHODS:
        raise UserError(f"'{name}' is already a method of fedkin: choose another name.")
    try:
        taken = find_spec(module) is not None
    except ValueError:  # a module without a specification, such as __main__
        taken = True
    if taken and not Path(f"{module}.py").exists():
        raise UserError(f"'{name}' is the name of an installed Python module: choose another one.")
