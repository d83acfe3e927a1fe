"""`make audit`: known vulnerabilities of what is installed, by pip-audit.

Where its database cannot be reached, pip-audit skips every package and says that nothing was found. This script says so
and fails instead: an audit that looked at nothing is none.
"""

from __future__ import annotations

import json
import subprocess
import sys


def verdict(report: dict[str, list[dict[str, object]]]) -> tuple[int, str]:
    """Exit code and words for pip-audit's JSON."""
    packages = report["dependencies"]
    audited = [p for p in packages if "skip_reason" not in p]
    skipped = [str(p["name"]) for p in packages if "skip_reason" in p and p["name"] != "fedkin"]
    bad = [p for p in audited if p["vulns"]]
    if not audited:
        return (
            3,
            f"Nothing was audited: the database has none of {len(skipped)} packages, or cannot be reached from here. "
            "Run it again where PyPI can be reached.",
        )
    lines = [f"{len(audited)} packages were audited, {len(bad)} have known vulnerabilities."]
    for package in bad:
        found: list[dict[str, object]] = package["vulns"]  # type: ignore[assignment]
        lines += [f"  {package['name']} {package['version']}: {v['id']}, fixed in {v['fix_versions']}" for v in found]
    if skipped:
        lines.append(f"Not in the database: {', '.join(skipped)}.")
    return int(bool(bad)), "\n".join(lines)


def main() -> int:
    words = [sys.executable, "-m", "pip_audit", "--skip-editable", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True)
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]
        print(f"Nothing was audited: {last}")
        return 3
    code, text = verdict(report)
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
