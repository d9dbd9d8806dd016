"""Changes that admission makes to pods when they are created."""

from collections.abc import Callable
from typing import Any, Final

from ddp_operator.ports import Manifest

from tests.simulation.world.kubelet import gated, trainer_of
from tests.simulation.world.resources import GPU, requested

Mutation = Callable[[Manifest], Manifest]

_PROXY: Final = {"name": "mesh-proxy", "image": "registry.example/proxy:1"}
_SETUP: Final = {"name": "setup", "image": "registry.example/setup:1"}
_GATE: Final = {"name": "gke.io/topology-aware-auto-research"}
"""The topology scheduler of GKE removes such gates when it has chosen nodes."""
_DEFAULTS: Final = {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi"}
"""Autopilot's, for containers without requests."""
_GPU_TOLERATION: Final = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}


def tolerating_gpus(pod: Manifest) -> Manifest:
    """Add the toleration for the taint of nodes with GPUs, as the admission plugin
    ExtendedResourceToleration does, which GKE uses.
    """
    known = pod["spec"].get("tolerations") or []
    if not requested(pod)[GPU] or _GPU_TOLERATION in known:
        return pod
    return _with_spec(pod, tolerations=[*known, _GPU_TOLERATION])


def _side_car(pod: Manifest) -> Manifest:
    """Add a side car as service meshes do since those are init containers that are restarted."""
    return _with_init_container(pod, {**_PROXY, "restartPolicy": "Always"})


def _init_container(pod: Manifest) -> Manifest:
    """Add a container that ends before the others start."""
    return _with_init_container(pod, _SETUP)


def _first_container(pod: Manifest) -> Manifest:
    """Add a side car as service meshes did before; its pod runs on when the trainer has ended."""
    return _with_spec(pod, containers=[_PROXY, *pod["spec"]["containers"]])


def _limits(pod: Manifest) -> Manifest:
    """Set the defaults of a LimitRange for containers that have no limits of their own."""
    trainer = trainer_of(pod)
    resources = trainer.get("resources") or {}
    limits = {"memory": "512Mi", **(resources.get("limits") or {})}
    changed = {**trainer, "resources": {**resources, "limits": limits}}
    containers = [changed if one is trainer else one for one in pod["spec"]["containers"]]
    return _with_spec(pod, containers=containers)


def _autopilot(pod: Manifest) -> Manifest:
    """Set default requests, and limits equal to the requests."""
    return _with_spec(pod, containers=list(map(_adjusted, pod["spec"]["containers"])))


def _adjusted(container: Manifest) -> Manifest:
    resources = container.get("resources") or {}
    own = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    requests = _DEFAULTS | own
    return {**container, "resources": {"requests": requests, "limits": requests}}


def _gate(pod: Manifest) -> Manifest:
    """Add a scheduling gate that somebody else removes later."""
    return gated(_with_spec(pod, schedulingGates=[_GATE]))


def _with_init_container(pod: Manifest, container: Manifest) -> Manifest:
    known = pod["spec"].get("initContainers") or ()
    return _with_spec(pod, initContainers=[container, *known])


def _with_spec(pod: Manifest, **changes: Any) -> Manifest:
    return {**pod, "spec": {**pod["spec"], **changes}}


MUTATIONS: Final[tuple[tuple[str, Mutation], ...]] = (
    ("nothing", lambda pod: pod),
    ("a side car", _side_car),
    ("another container", _first_container),
    ("limits", _limits),
    ("a scheduling gate", _gate),
    ("Autopilot's requests", _autopilot),
    ("an init container", _init_container),
)
