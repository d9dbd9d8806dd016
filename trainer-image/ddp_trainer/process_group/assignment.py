"""The assignment of a pod: its node rank in one generation of the job's group.

Pods start with a node rank, or as spares without one. Later the operator may send their launchers
another assignment; while no operator runs, the launcher of node rank 0 does. Each one has a higher
generation, and no pod returns to a lower one. The launcher writes what it receives to a file beside
the pod's status. Ranks that can form a new group read it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ddp_protocol.message import to_json
from ddp_protocol.world import GroupAssignment

from ddp_trainer.settings.environment import Environment, Placement
from ddp_trainer.settings.pod_sizes import PodSizes
from ddp_trainer.telemetry.status import STATUS_FILE_VARIABLE, replace_file


class Assignment(GroupAssignment):
    """An assignment, as a pod applies it."""

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
            return Assignment.read(self._path.read_bytes())
        except (OSError, ValueError):
            return None
