"""Messages about snapshots between the launchers of a job, and their limits."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_trainer.memory.volume import LARGEST_STEP, SLOTS

MAX_REPORT_BYTES = 4096
MAX_ANSWER_BYTES = 1 << 20
PIECE_BYTES = 4 << 20
"""Size of the parts in which snapshots are sent: far below what a second allows, and large enough
that requests cost little."""
MAX_TEXT = 200
"""Characters of a reason or a refusal."""
_MOST_HELD = 4 * SLOTS


@dataclass(frozen=True, kw_only=True)
class Held:
    """A step that all ranks of a pod have saved in this generation."""

    step: int
    replicated: bool
    copied: bool
    """True: all other pods that should have copies have them."""
    bytes: int
    """Size of the pod's own snapshots of this step."""


@dataclass(frozen=True, kw_only=True)
class KeysReport:
    """The steps that a pod's ranks have saved in this generation, for node rank 0."""

    job_uid: str
    attempt: int
    generation: int
    node_rank: int
    asked: int | None = None
    """The newest step that all ranks of the pod wanted to save, or a newer one; skipped steps
    count. None: none yet."""
    held: tuple[Held, ...] = ()
    refusal: str = ""
    """Why the pod does not save or copy snapshots; empty: it does."""

    def check(self) -> None:
        """Check the limits.

        Raises:
            ValueError: a field is out of bounds; the message names it.
        """
        if len(self.held) > _MOST_HELD:
            raise ValueError(f"held: at most {_MOST_HELD} steps")
        if any(step > LARGEST_STEP for step in (self.asked or 0, *(one.step for one in self.held))):
            raise ValueError(f"step: at most {LARGEST_STEP}")
        if len(self.refusal) > MAX_TEXT:
            raise ValueError(f"refusal: at most {MAX_TEXT} characters")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A pod that receives copies."""

    node_rank: int
    host: str


@dataclass(frozen=True, kw_only=True)
class KeysAnswer:
    """The answer of node rank 0 to such a report."""

    complete: int | None = None
    """The newest step of this generation that is complete."""
    dead: tuple[int, ...] = ()
    """Newer steps that will never be complete."""
    targets: tuple[Target, ...] = ()
    """The pods that receive copies from the sender of the report."""
    sources: tuple[int, ...] = ()
    """Node ranks of the pods of which the sender holds copies."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A whole snapshot in a pod."""

    name: str
    bytes: int
    checksum: int | None = None
    """Of a copy, when it arrived; None: it is the pod's own, or it is not known."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """All whole snapshots in a pod."""

    generation: int
    node_rank: int | None = None
    usable: bool = True
    """False: the pod can keep nothing, because its volume cannot be written."""
    snapshots: tuple[Stored, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """A snapshot to restore, and the pods that have it."""

    name: str
    bytes: int
    hosts: tuple[str, ...] = ()
    checksum: int | None = None
    """None: no pod knows it."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The snapshots that the ranks of one pod resume from, as node rank 0 decided."""

    sources: tuple[Source, ...] = ()
    """A snapshot for each rank of the pod, in their order; or replicated ones, any of which
    suffices for all ranks; empty: there is nothing to restore."""
    reason: str = ""
    """Why there is nothing to restore."""


@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """The question of a rank what it resumes from."""

    rank: int
    generation: int


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """A rank's datagram after a call of `save`."""

    rank: int
    generation: int
    step: int
    saved: bool
    """False: it skipped the step, or cannot save."""
    replicated: bool = False
    """True: it speaks for all ranks of its pod."""
    refusal: str = ""
    """Why it cannot save; empty: it can."""
    paused: bool = False
    """True: it waits after this step, as requested."""
