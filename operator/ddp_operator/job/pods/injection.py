"""Inject the bundled launcher into a pod of any image, in front of the trainer's command."""

from collections.abc import Mapping
from typing import Any, Final

from ddp_operator.api.command import is_python
from ddp_operator.api.constants import LAUNCHER_PATH
from ddp_operator.api.pod_security import RESTRICTED_CONTAINER, RESTRICTED_POD

NAME: Final = "ddp-launcher"
"""Name of the init container and the volume. The API server refuses templates that use it."""
_SOURCE: Final = "/launcher"
"""The launcher's folder in the operator's image (Dockerfile)."""

# With the trainer's resources, the copy fits wherever the trainer does: a LimitRange or a quota
# judges both alike, and the pod keeps its quality of service. They add nothing to the pod's
# requests, because an init container's count only if they exceed those of the other containers.
_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_SECURITY: Final = {
    **RESTRICTED_CONTAINER,
    **RESTRICTED_POD,
    "readOnlyRootFilesystem": True,
    "runAsUser": 65532,
}
"""Satisfies the Pod Security Standard `restricted` with any settings of the pod."""


def inject(spec: dict[str, Any], trainer: dict[str, Any], *, image: str) -> None:
    """Change a pod's spec and its trainer, which must have a command; `image` is the operator's."""
    mount = {"name": NAME, "mountPath": LAUNCHER_PATH}
    spec["volumes"] = [
        *(spec.get("volumes") or []),
        {"name": NAME, "emptyDir": {"sizeLimit": "16Mi"}},
    ]
    spec["initContainers"] = [
        {
            "name": NAME,
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["cp", "-R", f"{_SOURCE}/.", LAUNCHER_PATH],
            "resources": _resources(trainer),
            "securityContext": _SECURITY,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [mount],
        },
        *(spec.get("initContainers") or []),
    ]
    command = trainer["command"]
    # The command's own Python has the packages of the ranks, so the launcher can fork them.
    python = command[0] if is_python(command[0]) else "python3"
    trainer["command"] = [python, LAUNCHER_PATH, "--", *command]
    trainer["volumeMounts"] = [
        *(trainer.get("volumeMounts") or []),
        {**mount, "readOnly": True},
    ]


def _resources(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trainer's requests and limits, without devices."""
    amounts = trainer.get("resources") or {}
    return {
        kind: {name: amount for name, amount in own.items() if name in _RESOURCES}
        for kind in ("requests", "limits")
        if (own := amounts.get(kind))
    }
