"""The group of a job: assignments of pods, and what launchers report about the group."""

from __future__ import annotations

from dataclasses import dataclass, fields
from ipaddress import ip_address
from typing import Annotated, ClassVar, Literal

from ddp_protocol.message import (
    OR_NONE,
    Bounds,
    Count,
    InvalidMessageError,
    Message,
    ZonedTime,
)

WORLD_PATH = "/world"
"""Path at which a launcher receives assignments (PUT) and returns its status (GET)."""
FAILURES_PATH = "/failures"
"""Path at which node rank 0's launcher receives failure reports (POST)."""
LEAD_SECONDS = 30
"""Silence of the operator after which node rank 0's launcher leads, unless the operator's last GET
named another time (`lead`). Longer than an operator takes to restart or to be replaced."""
MAX_MEMBERS = 2048
"""Most characters of `members`: enough for thousands of pods if slots are nearly in order."""
MAX_COPY_ORDER = 24 * 1024
"""Most characters of `copy_order`: enough for 5,000 pods in any order."""
MAX_COPIES = 8
"""Most copies of a snapshot in memory."""
MAX_FAILURES = 64
"""Failures of a generation that a launcher keeps. The cause is among the first; its consequences
may be thousands."""
MAX_LED = 64
"""Generations without the operator that a launcher keeps: the newest."""
MAX_FAILURES_LED = 2
"""Failures that it keeps of each of them: the first ones."""
MESSAGE_BYTES = 1536
"""Bytes of a failure's message: enough for the last output of a rank and the rest of its report,
and less than the 4096 bytes that Kubernetes keeps of a termination message."""

_Name = Annotated[str, Bounds(0, 253)]
"""Of a host or a pod (RFC 1035, RFC 1123)."""
_Members = Annotated[str, Bounds(0, MAX_MEMBERS)]
_Code = Annotated[str, Bounds(0, 64)]
_CopyOrder = Annotated[str, Bounds(0, MAX_COPY_ORDER)]
Pause = Literal["", "Requested", "Paused", "Missed"]
"""Rank 0's pause after a snapshot. Empty: nobody has requested one. Paused: it waits, and all pods
hold the snapshots of its step and their copies. Missed: that took too long, and it trains."""


@dataclass(frozen=True, kw_only=True)
class GroupAssignment(Message):
    """The description of the group that one pod receives, for one generation."""

    MAX_BYTES: ClassVar[int] = 4096 + MAX_COPY_ORDER

    job_uid: str
    attempt: int
    generation: int
    node_rank: int | None = None
    """None: the pod has no node rank and waits for one."""
    nodes: Annotated[int, Bounds(1, 1 << 16)]
    """Pods in the group."""
    master_addr: Annotated[str, Bounds(1, 253)]
    """Host name of the pod of node rank 0."""
    master_address: str = ""
    """Its numeric address; empty if the operator does not know it."""
    start: bool = True
    """True if ranks that restart may start now; False while others are missing."""
    grace_seconds: Annotated[int, Bounds(0, 600)] = 15
    """Time that ranks get to end before they restart."""
    broken: bool = False
    """True if the previous generation lost a pod: its ranks would wait for it in vain."""
    leader: _Name = ""
    """Name of node rank 0's pod; empty: unknown."""
    led: bool = False
    """True if that pod's launcher began this generation because no operator was running."""
    host: _Name = ""
    """Host name of the receiving pod; other pods of the job refuse the assignment. Empty: any."""
    members: _Members = ""
    """Slots of the group's pods in the order of their node ranks, such as `0-2,5`. Only node rank 0
    receives them, because it may have to lead. Empty: it must not lead."""
    code: _Code = ""
    """ID of the code of the processes, see `code_archive`. Empty: that which the pod has."""
    copy_order: _CopyOrder = ""
    """Node ranks such as `0-2,5,3-4`, those that can be lost together one after the other: copies
    of snapshots go to other parts of it, see `copies`. Only a node rank 0 that reports its
    `copy_order` receives it, because earlier launchers refuse long messages. Empty: unknown."""
    pause: bool = False
    """True: rank 0 pauses after its next snapshot in memory, because other pods are ready to take
    the places of some. Only node rank 0 receives it."""

    def check(self) -> None:
        """See `Message`."""
        if (self.node_rank or 0) >= self.nodes:
            raise InvalidMessageError("nodeRank: must be null or 0 to nodes - 1")
        try:
            ip_address(self.master_address or "::")
        except ValueError as error:
            raise InvalidMessageError(f"masterAddress: {error}") from None


@dataclass(frozen=True)
class WorldAnswer(Message):
    """A launcher's answer to an assignment."""

    generation: Count
    """The generation that the launcher has now."""
    ended: bool = False
    """True if no process of an earlier generation runs."""
    led: bool = False
    """True if a launcher began that generation, not the operator: it is not the assigned one."""


@dataclass(frozen=True, kw_only=True)
class PodFailure(Message):
    """The processes of a pod have ended, and the pod does not restart them by itself."""

    pod: Annotated[str, Bounds(1, 253)]
    """The pod's name; no other pod of the job has had it."""
    node_rank: Annotated[Count | None, OR_NONE] = None
    generation: Count
    """Generation of the processes that failed."""
    exit_code: Annotated[int, Bounds(1, 255)]
    message: Annotated[str, Bounds(0, 4096)] = ""
    """The text that the pod would have left as its termination message."""
    time: ZonedTime
    """As in 2026-11-21T03:00:00Z."""


@dataclass(frozen=True, kw_only=True)
class FailureReport(PodFailure):
    """A failure as a launcher sends it to that of node rank 0."""

    MAX_BYTES: ClassVar[int] = 4096

    job_uid: str
    attempt: int

    def check(self) -> None:
        """See `Message`."""
        if len(self.message.encode()) > MESSAGE_BYTES:
            raise InvalidMessageError(f"message: at most {MESSAGE_BYTES} bytes")

    def failure(self) -> PodFailure:
        """Return the failure without the job's ID and attempt."""
        return PodFailure(**{field.name: getattr(self, field.name) for field in fields(PodFailure)})


@dataclass(frozen=True, kw_only=True)
class Led:
    """A generation that node rank 0's launcher started without an operator."""

    generation: Count
    time: ZonedTime
    """When its processes could start, as in 2026-11-21T03:00:00Z."""


@dataclass(frozen=True, kw_only=True)
class RestoreDecision:
    """From which snapshots in memory the processes of a generation resume."""

    generation: Count
    step: Count | None = None
    """None: no step can be restored."""
    time: ZonedTime
    """When it was decided, as in 2026-11-21T03:00:00Z."""
    reason: str = ""
    """Why no step can be restored; empty: one can."""


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """Snapshots in the memory of a job's pods."""

    step: Count | None = None
    """Newest step of which all snapshots and copies are stored; None: of no step."""
    time: ZonedTime | None = None
    """When they were, as in 2026-11-21T03:00:00Z."""
    bytes: Count | None = None
    """Size of that step's snapshots in the pod that has the most."""
    copies: Annotated[int, Bounds(0, MAX_COPIES)] = 0
    """Other pods that hold a copy of each sharded snapshot."""
    copy_order: Annotated[str | None, Bounds(0, 64), OR_NONE] = None
    """Fingerprint of the order by which that step's copies were placed, as in `LauncherStatus`.
    None: not known, for example until a restarted group has its first complete step."""
    replicated: bool = False
    """True: each pod has the whole state of that step, so there are no copies."""
    refusal: str = ""
    """Why newer snapshots are not saved or not copied, and in which pod."""
    restored: RestoreDecision | None = None
    """The newest decision; None: this generation has none yet."""


@dataclass(frozen=True, kw_only=True)
class LauncherStatus(Message):
    """The news of a group that node rank 0's launcher gives to the operator."""

    number: Count
    """Grows whenever another field changes."""
    generation: Count
    scope: Literal["InPlace", "Pod"] = "InPlace"
    """How its processes join another group: by restarting in place, or by themselves."""
    failures: Annotated[
        tuple[PodFailure, ...], Bounds(0, MAX_FAILURES + MAX_LED * MAX_FAILURES_LED)
    ] = ()
    """In order of arrival: of this generation, and of those that later generations were led for."""
    members: _Members = ""
    """Slots of the group's pods, as in `GroupAssignment`; empty: the launcher never leads."""
    led: Annotated[tuple[Led, ...], Bounds(0, MAX_LED)] = ()
    """Newest generations that no operator announced, up to the present one."""
    saved_in_pod: bool = False
    """True if processes saved to a disk that no other pod can read."""
    memory: Annotated[MemoryReport | None, OR_NONE] = None
    """None: there are no snapshots in memory, or the report is invalid. People read it; nothing
    depends on it, and only a new restore decision changes `number`."""
    code: _Code = ""
    """ID of the code of this generation, as in `GroupAssignment`; empty: unknown."""
    remark: Annotated[str, Bounds(0, 512)] = ""
    """A mistake of the script that keeps the ranks from meeting. People read it; nothing depends on
    it. Empty: none is known."""
    copy_order: Annotated[str | None, Bounds(0, 64), OR_NONE] = None
    """Fingerprint of the order by which this launcher places copies, see `copies.fingerprint`.
    Empty: that of the node ranks. None: the launcher uses no other."""
    pause: Annotated[Pause | None, OR_NONE] = None
    """Rank 0's pause; None: this launcher keeps no snapshots, or is of an earlier release."""
