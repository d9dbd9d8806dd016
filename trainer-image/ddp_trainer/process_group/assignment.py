"""The assignment of a pod: its node rank in one generation of the job's group.

Pods start with a node rank, or as spares without one. Later the operator may send their launchers
another assignment; while no operator runs, the launcher of node rank 0 does. Each one has a higher
generation, and no pod returns to a lower one. The launcher writes what it receives to a file beside
the pod's status. Ranks that can form a new group read it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from ddp_trainer.settings.environment import Environment, Placement
from ddp_trainer.settings.pod_sizes import PodSizes
from ddp_trainer.telemetry.status import STATUS_FILE_VARIABLE, replace_file
from ddp_trainer.telemetry.wire import from_json, to_json

PATH = "/world"
"""Path at which the launchers' status servers receive assignments."""
MAX_BYTES = 4096
_LONGEST_GRACE_SECONDS = 600
_MOST_NODES = 1 << 16
_LONGEST_NAME = 253
"""Most characters in the name of a host or a pod (RFC 1035, RFC 1123)."""
LONGEST_MEMBERS = 2048
"""Most characters of `members`: enough for thousands of pods if slots are nearly in order."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The description of the group that one pod receives, for one generation."""

    job_uid: str
    attempt: int
    generation: int
    node_rank: int | None = None
    """None: the pod has no node rank and waits for one."""
    nodes: int
    """Pods in the group."""
    master_addr: str
    """Host name of the pod of node rank 0."""
    master_address: str = ""
    """Its numeric address; empty if the operator does not know it."""
    start: bool = True
    """True if ranks that restart may start now; False while others are missing."""
    grace_seconds: int = 15
    """Time that ranks get to end before they restart."""
    broken: bool = False
    """True if the previous generation lost a pod: its ranks would wait for it in vain."""
    leader: str = ""
    """Name of node rank 0's pod; empty: unknown."""
    led: bool = False
    """True if that pod's launcher began this generation because no operator was running."""
    host: str = ""
    """Host name of the receiving pod; other pods of the job refuse the assignment. Empty: any."""
    members: str = ""
    """Slots of the group's pods in the order of their node ranks, such as `0-2,5`. Only node rank 0
    receives them, because it may have to lead. Empty: it must not lead."""

    @classmethod
    def parse(cls, text: bytes) -> Assignment:
        """Parse an assignment that the operator sent.

        Raises:
            ValueError: the text is no valid assignment; the message names the field.
        """
        assignment = from_json(cls, text)
        if (
            not 0 < assignment.nodes <= _MOST_NODES
            or (assignment.node_rank or 0) >= assignment.nodes
        ):
            raise ValueError("nodeRank: must be null or 0 to nodes - 1")
        if not 0 < len(assignment.master_addr) <= _LONGEST_NAME:
            raise ValueError(f"masterAddr: must be a host name of 1 to {_LONGEST_NAME} characters")
        if assignment.master_address:
            ip_address(assignment.master_address)
        if len(assignment.host) > _LONGEST_NAME:
            raise ValueError(f"host: must have at most {_LONGEST_NAME} characters")
        if len(assignment.leader) > _LONGEST_NAME:
            raise ValueError(f"leader: must have at most {_LONGEST_NAME} characters")
        if len(assignment.members) > LONGEST_MEMBERS:
            raise ValueError(f"members: must have at most {LONGEST_MEMBERS} characters")
        if assignment.grace_seconds > _LONGEST_GRACE_SECONDS:
            raise ValueError(f"graceSeconds: must be at most {_LONGEST_GRACE_SECONDS}")
        return assignment

    def concerns(self, placement: Placement) -> bool:
        """Return whether it is for the job and attempt of this pod."""
        return (self.job_uid, self.attempt) == (placement.job_uid, placement.attempt)

    def of(self, process: Environment) -> Environment:
        """Return the environment of one of the pod's processes under this assignment.

        Pods of unequal sizes keep their node ranks, because none fits the node rank of another.
        """
        assert self.node_rank is not None, "a pod without a node rank has no ranks"
        placement = replace(
            process.placement,
            generation=self.generation,
            master_addr=self.master_addr,
            master_address=self.master_address,
        )
        if placement.pod_sizes.are_equal:
            ranks = placement.local_world_size
            placement = replace(
                placement,
                node_rank=self.node_rank,
                world_size=self.nodes * ranks,
                pod_sizes=PodSizes((ranks,) * self.nodes),
            )
        return replace(process, placement=placement, rank=placement.rank_of(process.local_rank))


class AssignmentFile:
    """The file in which the launcher passes the newest assignment to the ranks of its pod."""

    def __init__(self, status_file: Path) -> None:
        """The file is beside the pod's status file."""
        self._path = status_file.with_name(f".{status_file.name}.world")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AssignmentFile | None:
        """Find the file of this rank's pod; None if no launcher runs there."""
        path = env.get(STATUS_FILE_VARIABLE)
        return cls(Path(path)) if path else None

    def write(self, assignment: Assignment) -> None:
        """Replace the assignment in the file.

        Raises:
            OSError: the file cannot be written.
        """
        replace_file(self._path, to_json(assignment))

    def stamp(self) -> tuple[int, int] | None:
        """Return a value that changes with each `write`; None if there is no file."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def read(self) -> Assignment | None:
        """Return the newest assignment; None if there is none or it cannot be read."""
        try:
            return Assignment.parse(self._path.read_bytes())
        except (OSError, ValueError):
            return None
