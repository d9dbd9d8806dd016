"""What mutating webhooks and LimitRanges make of pods that are about to be created."""

from collections.abc import Callable
from typing import Any, Final

from ddp_operator.ports import Manifest

from tests.simulation.world.kubelet import trainer_of

Mutation = Callable[[Manifest], Manifest]

_PROXY: Final = {"name": "mesh-proxy", "image": "registry.example/proxy:1"}


def _side_car(pod: Manifest) -> Manifest:
    """As service meshes do since side cars are init containers that are restarted."""
    known = pod["spec"].get("initContainers") or ()
    side_car = {**_PROXY, "restartPolicy": "Always"}
    return _with_spec(pod, initContainers=[side_car, *known])


def _first_container(pod: Manifest) -> Manifest:
    """As they did before, which holds the pod up when the trainer has ended."""
    return _with_spec(pod, containers=[_PROXY, *pod["spec"]["containers"]])


def _limits(pod: Manifest) -> Manifest:
    """The defaults of a LimitRange, for containers that have no limits of their own."""
    trainer = trainer_of(pod)
    resources = trainer.get("resources") or {}
    limits = {"memory": "512Mi", **(resources.get("limits") or {})}
    changed = {**trainer, "resources": {**resources, "limits": limits}}
    containers = [changed if one is trainer else one for one in pod["spec"]["containers"]]
    return _with_spec(pod, containers=containers)


def _with_spec(pod: Manifest, **changes: Any) -> Manifest:
    return {**pod, "spec": {**pod["spec"], **changes}}


MUTATIONS: Final[tuple[tuple[str, Mutation], ...]] = (
    ("nothing", lambda pod: pod),
    ("a side car", _side_car),
    ("another container", _first_container),
    ("limits", _limits),
)
