"""How far pods come: what keeps them from getting further, and for how long.

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
    """Bound to a node whose kubelet has not said anything yet."""
    SANDBOX = 2
    """Its volumes and its network are being set up."""
    CONTAINER = 3
    """Its image is pulled, its container made."""
    STARTED = 4
    READY = 5


Fault = Literal["node", "registry", "cluster", "spec"]
"""Whose it is that a pod gets no further."""


@dataclass(frozen=True)
class Hold:
    """Pods get no further than this, for this reason."""

    stage: Stage
    fault: Fault
    reason: str = ""
    message: str = ""


_PULL = f'failed to pull and unpack image "{IMAGE_OF_TRAINER}": failed to resolve reference'
_STATUS = "unexpected status from HEAD request to https://registry.example/v2/trainer/manifests/1"

HOLDS: Final = {
    "no room": Hold(Stage.CREATED, "cluster"),
    "dead kubelet": Hold(Stage.SCHEDULED, "node"),
    "volume does not mount": Hold(Stage.SANDBOX, "node"),
    "no network": Hold(Stage.SANDBOX, "node"),
    "registry answers 503": Hold(
        Stage.CONTAINER, "registry", "ErrImagePull", f"{_PULL}: {_STATUS}: 503 Service Unavailable"
    ),
    "registry answers 429": Hold(
        Stage.CONTAINER, "registry", "ErrImagePull", f"{_PULL}: {_STATUS}: 429 Too Many Requests"
    ),
    "registry is away": Hold(
        Stage.CONTAINER,
        "registry",
        "ImagePullBackOff",
        f'Back-off pulling image "{IMAGE_OF_TRAINER}": ErrImagePull: {_PULL}: dial tcp '
        "192.0.2.7:443: i/o timeout",
    ),
    "never gets ready": Hold(Stage.STARTED, "node"),
    "no such image": Hold(
        Stage.CONTAINER, "spec", "ErrImagePull", f"{_PULL}: {IMAGE_OF_TRAINER}: not found"
    ),
    "no such Secret": Hold(
        Stage.CONTAINER, "spec", "CreateContainerConfigError", 'secret "token" not found'
    ),
    "no such name": Hold(
        Stage.CONTAINER,
        "spec",
        "InvalidImageName",
        'Failed to apply default image tag "Trainer:1": couldn\'t parse image name "Trainer:1": '
        "invalid reference format: repository name (library/Trainer) must be lowercase",
    ),
}


def missing_secret(name: str) -> Hold:
    """What keeps a pod back whose token is in a Secret that is gone."""
    words = f'secret "{name}" not found'
    return Hold(Stage.CONTAINER, "cluster", "CreateContainerConfigError", words)


@dataclass
class Holds:
    """All that hold at present: on a node, on one pod (by its UID), or on all pods."""

    _until: dict[str, tuple[float, Hold]] = field(default_factory=dict)

    def put(self, where: str, hold: Hold, *, until: float = math.inf) -> None:
        """Let it hold somewhere; `where` is empty for everywhere."""
        self._until[where] = (until, hold)

    def clear(self) -> None:
        """Let all pods get on."""
        self._until.clear()

    def of(self, pod: Manifest, now: float) -> Hold | None:
        """What keeps a pod back the most; None: nothing does."""
        known = [
            self._until[where]
            for where in ("", pod["spec"].get("nodeName", ""), pod["metadata"]["uid"])
            if where in self._until
        ]
        holds = [hold for until, hold in known if now < until]
        return min(holds, key=lambda hold: hold.stage, default=None)
