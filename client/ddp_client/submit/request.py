"""The request for a job: the options of `kubectl ddp run` and of the Python client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self

from ddp_client.submit.code import CodeFolder
from ddp_client.submit.gpus import GpuRequest
from ddp_client.submit.mounts import Mount
from ddp_client.submit.scripts import Scripts
from ddp_client.submit.validation import JobRequestError, object_name

Launcher = Literal["auto", "bundled", "inject", "torchrun", "none"]
LAUNCHERS: Final[tuple[Launcher, ...]] = ("auto", "bundled", "inject", "torchrun", "none")


@dataclass(frozen=True)
class CheckpointLocation:
    """Where checkpoints are stored."""

    field: str
    """Field of `spec.checkpoint`."""
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `pvc/NAME` or `gs://BUCKET`.

        Raises:
            JobRequestError: it has another form.
        """
        if text.startswith("gs://"):
            return cls("gcsBucket", object_name(text[5:].rstrip("/"), "bucket"))
        if text.startswith("pvc/"):
            return cls("persistentVolumeClaim", object_name(text[4:], "claim"))
        raise JobRequestError(f"checkpoint {text[:120]!r}: use pvc/NAME or gs://BUCKET")


@dataclass(frozen=True)
class MemoryCheckpoint:
    """Memory for snapshots in each pod."""

    size_limit: str
    copies: int | None = None
    """Pods that keep a copy; None: the default."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `SIZE` or `SIZE,copies=N`.

        Raises:
            JobRequestError: it has another form.
        """
        size, comma, option = text.partition(",")
        name, _, copies = option.partition("=")
        if comma and not (name == "copies" and copies.isdecimal() and copies.isascii()):
            raise JobRequestError(
                f"memory-checkpoint {text[:80]!r}: use SIZE or SIZE,copies=N, such as 64Gi,copies=1"
            )
        return cls(size, int(copies[:9]) if comma else None)

    @property
    def field(self) -> dict[str, str | int]:
        """The field of the spec."""
        copies = {} if self.copies is None else {"copies": self.copies}
        return {"sizeLimit": self.size_limit, **copies}


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job in a few options; all other fields keep the schema's defaults."""

    name: str
    image: str
    command: Sequence[str] = ()
    """The command with local paths; empty: the image's own."""
    replicas: int = 1
    gpus: GpuRequest | None = None
    spot: bool = False
    cpu: str | None = None
    memory: str | None = None
    queue: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    env_from: Sequence[str] = ()
    """`secret/NAME` and `configmap/NAME`: all their keys become variables."""
    mounts: Sequence[Mount] = ()
    checkpoint: CheckpointLocation | None = None
    memory_checkpoint: MemoryCheckpoint | None = None
    max_restarts: int | None = None
    min_replicas: int | None = None
    """Training continues with this many pods while others are missing."""
    max_replicas: int | None = None
    """The job grows up to this many pods when nodes are available."""
    spares: int = 0
    """Pods without a rank that wait to replace a lost one."""
    user: int | None = None
    """User ID of the processes, which then run as `restricted` requires; None: the image's."""
    scripts: Scripts | None = None
    code: CodeFolder | None = None
    """A folder to send to the pods, in which the command runs, and packages to install."""
    launcher: Launcher = "auto"
    """Program that starts a pod's processes: the launcher of the image (`bundled`) or one copied
    into it (`inject`), torchrun, or the command itself (`none`). `auto` selects torchrun if a pod
    has several processes and the command starts Python."""


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "gpus": lambda amount: GpuRequest.parse(str(amount)),
    "mounts": lambda mounts: [Mount.parse(mount) for mount in mounts],
    "checkpoint": CheckpointLocation.parse,
    "memory_checkpoint": MemoryCheckpoint.parse,
}
"""Readers of options that are given as text."""
_NAMES: Final = frozenset(each.name for each in fields(JobRequest))


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request among options, by name. None is the same as no option.

    Raises:
        JobRequestError: an option is invalid.
    """
    given = {k: value for k, value in options.items() if k in _NAMES and value is not None}
    return {k: _READERS[k](value) if k in _READERS else value for k, value in given.items()}


def size_limits(request: JobRequest) -> tuple[int, int]:
    """Return the smallest and the largest number of pods that the job trains with."""
    return request.min_replicas or request.replicas, request.max_replicas or request.replicas


def ranks_per_pod(request: JobRequest) -> int:
    """Return the processes of each pod: one per GPU."""
    return request.gpus.count if request.gpus else 1
