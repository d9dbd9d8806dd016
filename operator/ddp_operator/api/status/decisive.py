"""Status fields that decisions read. Without one of them the operator would decide the same again
and again, so it does not lead if the installed CRD lacks one.
"""

from collections.abc import Iterable
from typing import Final

DECISIVE: Final = (
    "attempt",
    "bookkeeping",
    "checkpoint.step",
    "checkpoint.time",
    "completedIndexes",
    "completionTime",
    "conditions",
    "excludedNodes",
    "failures",
    "gaps",
    "memoryCheckpoint.step",
    "memoryCheckpoint.time",
    "nextStartTime",
    "progress.step",
    "progress.totalSteps",
    "progress.updatedAt",
    "restarts",
    "slowRank",
    "startTime",
    "world",
)
"""Names as stored. A name includes all fields inside. `tests/simulation` checks that the list is
complete.
"""


def decisive_names(names: Iterable[str]) -> frozenset[str]:
    """Return those of some names (as in `Difference`) without which no decision can be stored: of
    decisive fields, and all words, because the API server refuses a status with an unknown word.
    """
    return frozenset(
        name
        for name in names
        if name.split(".")[0] == "status" and ("=" in name or _is_decisive(name))
    )


def _is_decisive(name: str) -> bool:
    path = name.replace("[]", "").split(".")[1:]
    return any(
        all(part == wanted for part, wanted in zip(path, field.split("."), strict=False))
        for field in DECISIVE
    )
