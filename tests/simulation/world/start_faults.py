"""Faults that keep pods from starting, and for how long.

Reasons and messages are the kubelet's (pkg/kubelet: images, kuberuntime, container) and those of
containerd; what only Events tell, as of a volume that does not mount, pods themselves do not say.
"""

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal

from ddp_operator.ports import Manifest

IMAGE_OF_TRAINER: Final = "registry.example/trainer:1"


class Stage(IntEnum):
    """How far a pod is; each is reached after those before it."""

    CREATED = 0
    SCHEDULED = 1
    """Bound to a node, without news from its kubelet."""
    SANDBOX = 2
    """Its volumes and its network are being set up."""
    CONTAINER = 3
    """Its image is pulled, its container made."""
    STARTED = 4
    READY = 5


Fault = Literal["node", "registry", "cluster", "spec"]
"""The cause that a pod does not start."""


@dataclass(frozen=True)
class StartFault:
    """A stage that pods do not pass, and why."""

    stage: Stage
    fault: Fault
    reason: str = ""
    message: str = ""
    refuses: bool = False
    """The kubelet ends the pod when it is bound to the node."""


_PULL = f'failed to pull and unpack image "{IMAGE_OF_TRAINER}": failed to resolve reference'
_STATUS = "unexpected status from HEAD request to https://registry.example/v2/trainer/manifests/1"

START_FAULTS: Final = {
    "no room": StartFault(Stage.CREATED, "cluster"),
    "dead kubelet": StartFault(Stage.SCHEDULED, "node"),
    "volume does not mount": StartFault(Stage.SANDBOX, "node"),
    "no network": StartFault(Stage.SANDBOX, "node"),
    "registry answers 503": StartFault(
        Stage.CONTAINER, "registry", "ErrImagePull", f"{_PULL}: {_STATUS}: 503 Service Unavailable"
    ),
    "registry answers 429": StartFault(
        Stage.CONTAINER, "registry", "ErrImagePull", f"{_PULL}: {_STATUS}: 429 Too Many Requests"
    ),
    "registry is away": StartFault(
        Stage.CONTAINER,
        "registry",
        "ImagePullBackOff",
        f'Back-off pulling image "{IMAGE_OF_TRAINER}": ErrImagePull: {_PULL}: dial tcp '
        "192.0.2.7:443: i/o timeout",
    ),
    "refuses pods": StartFault(
        Stage.SCHEDULED,
        "node",
        "OutOfnvidia.com/gpu",
        "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 1, "
        "used: 0, capacity: 0",
        refuses=True,
    ),
    "never gets ready": StartFault(Stage.STARTED, "node"),
    "no such image": StartFault(
        Stage.CONTAINER, "spec", "ErrImagePull", f"{_PULL}: {IMAGE_OF_TRAINER}: not found"
    ),
    "no such Secret": StartFault(
        Stage.CONTAINER, "spec", "CreateContainerConfigError", 'secret "token" not found'
    ),
    "no such name": StartFault(
        Stage.CONTAINER,
        "spec",
        "InvalidImageName",
        'Failed to apply default image tag "Trainer:1": couldn\'t parse image name "Trainer:1": '
        "invalid reference format: repository name (library/Trainer) must be lowercase",
    ),
}


def missing_secret(name: str) -> StartFault:
    """Return the fault of a pod that needs a Secret that is gone."""
    words = f'secret "{name}" not found'
    return StartFault(Stage.CONTAINER, "cluster", "CreateContainerConfigError", words)


@dataclass
class StartFaults:
    """All such faults at present: on a node, of one pod (by its UID), or of all pods."""

    _until: dict[str, tuple[float, StartFault]] = field(default_factory=dict)

    def put(self, where: str, fault: StartFault, *, until: float = math.inf) -> None:
        """Begin a fault; `where` is empty for everywhere."""
        self._until[where] = (until, fault)

    def clear(self) -> None:
        """End all of them."""
        self._until.clear()

    def of(self, pod: Manifest, now: float) -> StartFault | None:
        """Return the earliest fault of a pod; None: it has none."""
        known = [
            self._until[where]
            for where in ("", pod["spec"].get("nodeName", ""), pod["metadata"]["uid"])
            if where in self._until
        ]
        faults = [fault for until, fault in known if now < until]
        return min(faults, key=lambda fault: fault.stage, default=None)
