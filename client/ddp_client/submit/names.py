"""Names for jobs without one."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from ddp_operator.api.constants import MAX_NAME_LENGTH

_NO_PART: Final = re.compile(r"[^a-z0-9]+")


def derived_name(command: Sequence[str], *, reserved: int = 0) -> str:
    """Return a valid name from a command's script, its module or its program.

    `reserved`: characters that the caller adds.
    """
    return valid_name(_program(command), reserved=reserved)


def valid_name(called: str, *, reserved: int = 0) -> str:
    """Return a valid job name from any name."""
    stem = _NO_PART.sub("-", called.lower()).strip("-") or "job"
    if not stem[0].isalpha():
        stem = f"job-{stem}"
    return stem[: MAX_NAME_LENGTH - reserved].rstrip("-")


def _program(command: Sequence[str]) -> str:
    script = next((word for word in command if word.endswith(".py")), "")
    if not script and "-m" in command[:-1]:
        return command[command.index("-m") + 1].rpartition(".")[2]
    return PurePosixPath(script or command[0]).stem
