"""The release of torch in this process, and the oldest one that the trainer supports."""

from __future__ import annotations

from typing import Final

import torch

OLDEST: Final = (2, 7)


def release() -> tuple[int, int]:
    """Return the major and minor number of torch's release."""
    major, minor, *_ = torch.__version__.split(".")
    return int(major), int(minor)


def shortcoming(what: str, oldest: tuple[int, int] = OLDEST) -> str | None:
    """Return a sentence that refuses `what` if torch is too old for it, otherwise None."""
    if release() >= oldest:
        return None
    needed = ".".join(map(str, oldest))
    return f"{what} needs torch {needed} or newer, but this is torch {torch.__version__}"
