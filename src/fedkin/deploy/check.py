"""`fedkin deploy check SITE_FILE`: look at a site on its own machine, before anything is sent."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

from fedkin.deploy.codec import SiteInfo, decode_info, encode_info
from fedkin.deploy.site import SiteConfig, introduce


def check(path: Path) -> list[str]:
    """Describe what this site would send to the server. Raise if something is wrong with the site."""
    config = read_site(path)
    notes = _state(Path(config.state))
    info = decode_info(encode_info(introduce(config)))  # the server's own checks
    limits = [
        f"{name} {value}"
        for name in ("functions", "max_requests", "max_rounds", "max_bytes", "allow", "privacy", "secure")
        if (value := getattr(config, name))
    ]
    return [
        f"{config.name} is ready. This is all that the server learns before the first round:",
        f"  the name of this site, and its version of fedkin: {info.fedkin}",
        f"  training, validation and test examples: {info.train}, {info.validation}, {info.test}",
        f"  shape of an example: {info.shape}; {_targets(info)}",
        f"  digest of the columns and classes: {info.columns or 'none'} ({_agreed(config)})",
        f"Limits of this site: {', '.join(limits) or 'none; see docs/deploying.md'}",
        *notes,
    ]


def read_site(path: Path) -> SiteConfig:
    """Read a site's own file."""
    if not path.is_file():
        raise ValueError(f"There is no file {path}: give the site's own file, such as sites/north.toml.")
    try:
        given = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}.") from None
    return SiteConfig.read(given)


def _agreed(config: SiteConfig) -> str:
    if not config.share:
        return "it must be the same at all sites"
    what = "names of columns, levels of categories and classes" + (", means and variances" * (config.share == "sites"))
    return f"it may differ: this site may tell the others {what}, if the run has run.fit"


def _targets(info: SiteInfo) -> str:
    if info.task == "classification":
        return f"classes: {info.classes}"
    return f"targets of a {info.task}: {info.outputs}"


def _state(folder: Path) -> list[str]:
    """Check that private states can be written, and warn if others can read them. Nothing is written."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"state='{folder}' is not writable: change the permissions of {there}, or choose another.")
    if there == folder and stat.S_IMODE(folder.stat().st_mode) & 0o077:
        return [f"Other users of this machine can read {folder}: chmod 700 {folder}"]
    return []
