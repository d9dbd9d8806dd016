"""Run inside `kubectl-ddp` before its program: refuse another Python or platform, and remove the
unpacked files of old releases.
"""

import json
import platform
import shutil
import sys
from contextlib import suppress
from pathlib import Path

KEPT_BESIDE = 1
"""Number of other releases to keep, because one may still be running."""


def prune(own: Path) -> None:
    """Remove the unpacked files of other releases, except the latest."""
    name = _program(own)
    others = [p for p in own.parent.iterdir() if _program(p) == name and p.is_dir() and p != own]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[KEPT_BESIDE:]:
        shutil.rmtree(path, ignore_errors=True)


def _program(unpacked: Path) -> str:
    """Return the program's name without the build that shiv adds; programs share the folder."""
    return unpacked.name.rpartition("_")[0]


def refusal(made_for: list[object], here: list[object]) -> str:
    """Return why the file cannot run here; empty if it can."""
    if made_for == here:
        return ""
    texts = ["Python {}.{} on {} {}".format(*each) for each in (made_for, here)]
    return (
        f"kubectl-ddp: this file needs {texts[0]}, but runs on {texts[1]}; run it with "
        f"python{made_for[0]}.{made_for[1]}, or install ddp-operator with pip"
    )


if __name__ == "__main__":
    _SITE = Path(__file__).parents[1]
    _HERE = [*sys.version_info[:2], sys.platform, platform.machine()]
    if _REFUSAL := refusal(json.loads((_SITE / "kubectl-ddp.json").read_text()), _HERE):
        sys.exit(_REFUSAL)
    with suppress(OSError):  # another process may do the same
        prune(_SITE.parent)
