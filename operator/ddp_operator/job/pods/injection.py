"""Puts the bundled launcher into a pod of any image, before the trainer's command."""

from typing import Any, Final

from ddp_operator.api.command import is_python
from ddp_operator.api.constants import LAUNCHER_PATH
from ddp_operator.job.pods.pod_security import RESTRICTED_CONTAINER, RESTRICTED_POD

NAME: Final = "ddp-launcher"
"""Of the init container and of the volume; the API server refuses a template with its own."""
_SOURCE: Final = "/launcher"
"""Where the operator's image has it (Dockerfile)."""

# As requests and limits alike, a pod keeps its quality of service; and a pod asks for no more by
# it, for an init container's requests count only where they exceed those of what runs later.
_RESOURCES: Final = {"cpu": "100m", "memory": "64Mi"}
_SECURITY: Final = {
    **RESTRICTED_CONTAINER,
    **RESTRICTED_POD,
    "readOnlyRootFilesystem": True,
    "runAsUser": 65532,
}
"""Admitted by the Pod Security Standard `restricted`, whatever the pod's own says."""


def inject(spec: dict[str, Any], trainer: dict[str, Any], *, image: str) -> None:
    """Change a pod's spec and its trainer container, which has a command; `image` is the
    operator's.
    """
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
            "resources": {"requests": _RESOURCES, "limits": _RESOURCES},
            "securityContext": _SECURITY,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [mount],
        },
        *(spec.get("initContainers") or []),
    ]
    command = trainer["command"]
    # A command's own Python has the packages that the ranks need, and so can be forked for them.
    python = command[0] if is_python(command[0]) else "python3"
    trainer["command"] = [python, LAUNCHER_PATH, "--", *command]
    trainer["volumeMounts"] = [
        *(trainer.get("volumeMounts") or []),
        {**mount, "readOnly": True},
    ]
