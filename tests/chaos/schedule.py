"""The disturbances and their times, drawn from a seed, so that a run can be repeated."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final


class Kind(Enum):
    """A way to disturb; the value says it in words."""

    DELETE_POD = "delete a pod"
    FORCE_DELETE_POD = "delete a pod by force"
    KILL_RANK = "kill -9 a training process"
    KILL_IN_SAVE = "kill -9 a training process while it saves"
    KILL_CONTAINER = "kill a pod's container behind the kubelet's back"
    KILL_OPERATOR = "kill -9 the operator"
    DELETE_OPERATOR = "delete a pod of the operator"
    KILL_API_SERVER = "kill -9 the API server, start it again"
    OUTAGE = "no API server for a minute, and two pods lose their containers meanwhile"


TIMES: Final[Mapping[Kind, int]] = {
    Kind.DELETE_POD: 5,
    Kind.FORCE_DELETE_POD: 5,
    Kind.KILL_RANK: 5,
    Kind.KILL_CONTAINER: 5,
    # Few: after each kill the kubelet waits twice as long before it starts the container again.
    Kind.KILL_OPERATOR: 3,
    Kind.DELETE_OPERATOR: 2,
    Kind.KILL_API_SERVER: 2,
    Kind.OUTAGE: 1,
}

SHORTEST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 7.0
"""About five jobs share these disturbances: each has half a minute to get on in between."""


@dataclass(frozen=True)
class Step:
    """One disturbance, after a pause."""

    pause_seconds: float
    kind: Kind


def schedule(random: Random) -> list[Step]:
    """Draw the order of all disturbances and the pauses before them."""
    kinds = [kind for kind, times in TIMES.items() for _ in range(times)]
    random.shuffle(kinds)
    return [Step(random.uniform(SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS), k) for k in kinds]
