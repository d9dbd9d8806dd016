"""The place of a pod in the group of its job, as the operator says it while the job lives, or the
launcher of node rank 0 while no operator is there.

Pods are born with a place, or as spares without one. Later the operator may tell their launchers of
another: each time under a higher generation, which nobody leaves for a lower one. The launcher puts
what it hears into a file beside the pod's status, where ranks that can form their group anew look.
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
"""What the launchers' status servers take it at."""
MAX_BYTES = 4096
_LONGEST_GRACE_SECONDS = 600
_MOST_NODES = 1 << 16
_LONGEST_NAME = 253
"""Of a host or a pod, in characters (RFC 1035, RFC 1123)."""
LONGEST_MEMBERS = 2048
"""Characters that name the pods of a group: room for thousands, unless they are in disorder."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one pod hears of the group, in one generation of it."""

    job_uid: str
    attempt: int
    generation: int
    node_rank: int | None = None
    """None: the pod has no place, and waits for one."""
    nodes: int
    """Pods in the group."""
    master_addr: str
    """Host name of the pod of node rank 0."""
    master_address: str = ""
    """Its numeric address; empty where the operator does not know it."""
    start: bool = True
    """Whether ranks that are started anew may start; false while others are missing."""
    grace_seconds: int = 15
    """What ranks that are started anew get to end."""
    broken: bool = False
    """Whether the generation before has lost a pod, so that its ranks wait for others in vain."""
    leader: str = ""
    """The name of node rank 0's pod; empty: not known."""
    led: bool = False
    """Whether that pod's launcher began this generation, since the operator was away."""
    host: str = ""
    """The host name of the pod that is told: another one of the job refuses it. Empty: not said."""
    members: str = ""
    """The slots of all pods of the group, in the order of their node ranks, such as `0-2,5`: for
    node rank 0 alone, which may have to lead. Empty: it may not."""

    @classmethod
    def parse(cls, text: bytes) -> Assignment:
        """Read what the operator sends.

        Raises:
            ValueError: it is something else; the message says what is wrong.
        """
        place = from_json(cls, text)
        if not 0 < place.nodes <= _MOST_NODES or (place.node_rank or 0) >= place.nodes:
            raise ValueError("nodeRank: null, or a number from 0 to below nodes")
        if not 0 < len(place.master_addr) <= _LONGEST_NAME:
            raise ValueError("masterAddr: the name of a host")
        if place.master_address:
            ip_address(place.master_address)
        if len(place.host) > _LONGEST_NAME:
            raise ValueError("host: the host name of the pod")
        if len(place.leader) > _LONGEST_NAME:
            raise ValueError("leader: the name of a pod")
        if len(place.members) > LONGEST_MEMBERS:
            raise ValueError(f"members: at most {LONGEST_MEMBERS} characters")
        if place.grace_seconds > _LONGEST_GRACE_SECONDS:
            raise ValueError(f"graceSeconds: at most {_LONGEST_GRACE_SECONDS}")
        return place

    def concerns(self, placement: Placement) -> bool:
        """Whether it is of the job and attempt that a pod belongs to."""
        return (self.job_uid, self.attempt) == (placement.job_uid, placement.attempt)

    def of(self, process: Environment) -> Environment:
        """Where one of the pod's processes stands, which has stood elsewhere.

        Pods of unequal sizes stay where they are: whose place could one of them take?
        """
        assert self.node_rank is not None, "whoever has no place stands nowhere"
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
    """The newest place, from the launcher to the ranks of its pod."""

    def __init__(self, status_file: Path) -> None:
        """It is kept in a file beside the pod's status."""
        self._path = status_file.with_name(f".{status_file.name}.world")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AssignmentFile | None:
        """As a rank finds it; None where no launcher listens."""
        path = env.get(STATUS_FILE_VARIABLE)
        return cls(Path(path)) if path else None

    def write(self, place: Assignment) -> None:
        """Replace the one before.

        Raises:
            OSError: it cannot be written.
        """
        replace_file(self._path, to_json(place))

    def stamp(self) -> tuple[int, int] | None:
        """What is another one after each `write`; None where none has come."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def read(self) -> Assignment | None:
        """The newest; None where none has come, or none that can be read."""
        try:
            return Assignment.parse(self._path.read_bytes())
        except (OSError, ValueError):
            return None
