"""Runs inside `kubectl-ddp` before its program: says for which Python it was made, and keeps what
it unpacks from piling up.
"""

import json
import platform
import shutil
import sys
from contextlib import suppress
from pathlib import Path

KEPT_BESIDE = 1
"""Of other releases: one may still be running."""


def prune(own: Path) -> None:
    """Remove what earlier releases have unpacked, but for the latest."""
    name = _program(own)
    others = [p for p in own.parent.iterdir() if _program(p) == name and p.is_dir() and p != own]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[KEPT_BESIDE:]:
        shutil.rmtree(path, ignore_errors=True)


def _program(unpacked: Path) -> str:
    """Its file's name, to which shiv adds what it was built of; others may share the folder."""
    return unpacked.name.rpartition("_")[0]


def refusal(made_for: list[object], here: list[object]) -> str:
    """Why it cannot run here; empty where it can."""
    if made_for == here:
        return ""
    texts = ["Python {}.{} on {} {}".format(*each) for each in (made_for, here)]
    return (
        f"kubectl-ddp: this file is made for {texts[0]}, and this is {texts[1]}: run it with "
        f"python{made_for[0]}.{made_for[1]}, or install ddp-operator by pip"
    )


if __name__ == "__main__":
    _SITE = Path(__file__).parents[1]
    _HERE = [*sys.version_info[:2], sys.platform, platform.machine()]
    if _REFUSAL := refusal(json.loads((_SITE / "kubectl-ddp.json").read_text()), _HERE):
        sys.exit(_REFUSAL)
    with suppress(OSError):  # as another one does the same
        prune(_SITE.parent)
