"""The true fate of pods and jobs, as the world knows it. Nothing here asks the operator."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from ddp_operator.ports import Manifest

from tests.simulation.world.kubelet import trainer_of

Class = Literal["Application", "Configuration", "Disruption", "Infrastructure"]

LATE_SECONDS: Final = 30.0
"""By how much a write may be late that is done in the end."""


class Exit(NamedTuple):
    """The end of a container, in the words of its kubelet, and the class of the failure."""

    code: int
    reason: str
    words: str
    class_: Class


BAD_RECORD: Final = Exit(1, "Error", "ValueError: bad record in shard 17", "Application")
BROKEN_GPU: Final = Exit(
    1, "Error", "CUDA error: uncorrectable ECC error encountered", "Infrastructure"
)
_START = "failed to create containerd task: failed to create shim task: OCI runtime create failed"

EXITS: Final = (
    Exit(1, "Error", "", "Application"),
    Exit(137, "OOMKilled", "", "Application"),
    Exit(75, "Error", "", "Application"),
    Exit(143, "Error", "", "Application"),
    Exit(2, "Error", "", "Application"),
    Exit(139, "Error", "", "Application"),
    Exit(1, "Error", "CUDA error: out of memory", "Application"),
    Exit(1, "Error", "Connection closed by peer", "Application"),
    BROKEN_GPU,
    Exit(137, "Error", '{"step": 77, "rank": 0, "error": "loss is nan"}', "Application"),
    Exit(
        134,
        "Error",
        '{"error": "Watchdog caught collective operation timeout", "printed": true, "dumps": true}',
        "Application",
    ),
    # What people make up: of wrong types, without end, not for a terminal.
    Exit(
        1,
        "Error",
        '{"step": 1e999, "rank": -1, "error": {"checkpoint": NaN}, "checkpoint": "\\ud800"}',
        "Application",
    ),
    Exit(1, "Error", '{"error":' * 400, "Application"),
    Exit(1, "Error", "\x1b[2J\x00\r" + "CUDA error " * 300, "Application"),
    Exit(64, "Error", "", "Configuration"),
)
"""The last one ends the job in any case."""
START_ERRORS: Final = (
    Exit(
        128,
        "StartError",
        f"{_START}: nvidia-container-cli: initialization error: driver rpc error",
        "Infrastructure",
    ),
    Exit(
        128,
        "StartError",
        f'{_START}: exec: "python": executable file not found in $PATH',
        "Configuration",
    ),
)
"""Of containers that were made and never ran; the last one only of images that never did."""
LATE_TO_SEE_SECONDS: Final = 60.0
"""A watch may be broken for 45 s."""
TOGETHER_SECONDS: Final = 2.0
"""Times in pods are in whole seconds: nobody can say which of two things came first."""


def class_of(exit_: Exit, pod: Manifest) -> Class:
    """Return the class of an exit in this pod. Without a limit, memory was the node's fault."""
    limits = (trainer_of(pod).get("resources") or {}).get("limits") or {}
    if exit_.reason == "OOMKilled" and "memory" not in limits:
        return "Infrastructure"
    return exit_.class_


@dataclass
class Truth:
    """The fate of one pod."""

    exit_code: int | None = None
    ended_at: float = 0.0
    completed: bool = False
    """It ended with 0 before anybody asked for its end."""
    taken_away: bool = False
    """By the cluster or a person, before it ended."""
    given_up: bool = False
    """Deleted by the operator."""
    faults: set[Class] = field(default_factory=set)
    """Classes of the faults that it met: one of them is the right name."""
    failed_as: Class | None = None
    """Class of the failure when its processes last ended and the pod stayed."""
    moved_at: float = 0.0
    """When its training began or came a step further, in seconds of the history."""
    stood_seconds: float = 0.0
    """How long it stood before that, or before an earlier step that came as late: an answer is old
    by the time when it is acted upon, and further steps may have been made meanwhile.
    """
    stood_until: float = 0.0
    is_done: bool = False
    """Its training reported that the result is safe."""
    last_step_at: float | None = None
    """When it made the last step of its training, in seconds of the history."""

    def move(self, now: float) -> None:
        """Training begins, or comes a step further."""
        stood = now - self.moved_at if self.moved_at else 0.0
        if stood >= self.stood_seconds or now - self.stood_until > LATE_SECONDS:
            self.stood_seconds, self.stood_until = stood, now
        self.moved_at = now


@dataclass
class Ledger:
    """The fate of one job."""

    faults: Counter[Class] = field(default_factory=Counter)
    """How often each kind has befallen its pods; consequences of a fault are not counted."""
    other_charges: int = 0
    """Charges for no fault of a pod: hangs, launchers out of reach, a user's rules."""
    ran: dict[tuple[str, bool], float] = field(default_factory=dict)
    """Since when pods have run, by what they were made of and whether they are the first one, which
    may be unlike the others.
    """
    seen_to_run: set[tuple[str, bool]] = field(default_factory=set)
    """Kinds that the operator must know: its status was written long after they began."""
    created: float = 0.0
    pods: int = 0
    """How many were created for it."""

    def note(self, kinds: Iterable[tuple[str, bool]], now: float) -> None:
        """The operator has stored what it sees, while pods of these kinds run or have ended."""
        long_ago = now - LATE_TO_SEE_SECONDS
        self.seen_to_run.update(kind for kind in kinds if self.ran.get(kind, now) < long_ago)

    def has_run(self, template: str, *, alike: bool) -> bool:
        """Return whether pods of each kind have, as the operator must know."""
        kinds = [(template, is_first) in self.seen_to_run for is_first in (True, False)]
        return any(kinds) if alike else all(kinds)
