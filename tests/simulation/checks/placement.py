"""How many pods of a job the nodes can hold, by room, taints and selectors."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ddp_operator.ports import Manifest

from tests.simulation.world.nodes import name_of
from tests.simulation.world.resources import Resources, offered
from tests.simulation.world.scheduler import Scheduler, obstacle
from tests.simulation.world.server import owner_of

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


def have_places(simulation: "Simulation", *, without: Collection[str] = ()) -> bool:
    """Return whether all pods of the job can run at once, on other nodes than `without`.

    Nodes that the operator avoids count, because it chose to avoid them.
    """
    job, server = simulation.job(), simulation.server
    newest = simulation.invariants.newest_pod.get(job.uid) if job else None
    if job is None or newest is None:
        return True
    model = _as_requested(newest, job.spec.template)
    others = {key: pod for key, pod in server.pods.items() if owner_of(pod) != job.uid}
    scheduler = Scheduler(server.node_manifests, others, simulation.scheduler.tenants)
    taken, wanted = scheduler.taken(), scheduler.requests_of(model)
    places = sum(
        _times(wanted, offered(node) - taken[name_of(node)])
        for node in server.node_manifests.values()
        if name_of(node) not in without and not obstacle(model, node, taken[name_of(node)], wanted)
    )
    return places >= job.spec.replicas


def _as_requested(pod: Manifest, template: Any) -> Manifest:
    """Return a pod with the affinity that its user wrote."""
    affinity = (template.get("spec") or {}).get("affinity") or {}
    return {**pod, "spec": {**pod["spec"], "affinity": affinity}}


def _times(wanted: Resources, free: Resources) -> int:
    return min(free[name] // amount for name, amount in wanted.items() if amount)
