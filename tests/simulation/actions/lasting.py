"""Faults that last when all others have ended, and whether a job may wait for their end."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ddp_operator.ports import Manifest

from tests.simulation.checks.placement import have_places
from tests.simulation.world import kubelet
from tests.simulation.world import refusals as answers
from tests.simulation.world.launchers import WITHOUT_LAUNCHER
from tests.simulation.world.nodes import UNREACHABLE, reporting
from tests.simulation.world.refusals import CREATIONS, Error, Refusal
from tests.simulation.world.scheduler import tolerates_everything
from tests.simulation.world.server import owner_of, shape_of
from tests.simulation.world.start_faults import START_FAULTS

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

_BAD_NODE: Final = "node-a"
"""The scheduler prefers it."""


@dataclass(frozen=True)
class LastingFault:
    """A fault that lasts."""

    name: str
    begin: Callable[["Simulation"], None]
    may_wait: Callable[["Simulation"], bool] = lambda _: False
    """Returns whether a job may wait until it is over, if its status says why."""
    last_message: Callable[["Simulation"], str] = lambda _: ""
    """Returns words that its status or Events must contain."""


def end(simulation: "Simulation") -> None:
    """End all of them."""
    simulation.requests.refusals.clear()
    simulation.start_faults.clear()
    simulation.dead_nodes.clear()
    simulation.scheduler.tenants.clear()
    simulation.launchers.all_cut_off_since = None
    for node in simulation.server.fleet.nodes.values():
        simulation.server.put_node(node)


def _a_node_never_starts_a_pod(what: str, simulation: "Simulation") -> None:
    simulation.start_faults.put(_BAD_NODE, START_FAULTS[what])


def _nobody_hears_of_a_node(simulation: "Simulation") -> None:
    lose_node(simulation, _BAD_NODE)


def lose_node(simulation: "Simulation", node: str) -> None:
    """Lose the way to a node and all pods on it. Pods that do not tolerate this are evicted."""
    simulation.dead_nodes.add(node)
    manifest = simulation.server.node_manifests[node]
    simulation.server.put_node(reporting(manifest, UNREACHABLE))
    for pod in simulation.pods(live=False):
        if kubelet.node_of(pod) != node or kubelet.is_over(pod):
            continue
        simulation.take_away(pod)
        simulation.invariants.truth_of(pod).faults.add("Infrastructure")
        simulation.change(pod, kubelet.not_ready(pod))
        if not tolerates_everything(pod):
            evict_by_taint(simulation, pod)


def evict_by_taint(simulation: "Simulation", pod: Manifest) -> None:
    """As the taint manager does."""
    simulation.take_away(pod)
    # Of one that had failed, too, this says that its node was about to be lost.
    simulation.invariants.truth_of(pod).faults.add("Disruption")
    key = simulation.key_of(pod)
    text = "Taint manager: deleting due to NoExecute taint"
    now = simulation.clock.now()
    found = simulation.server.found_pod(key)
    simulation.change(pod, kubelet.targeted(found, "DeletionByTaintManager", text, now))
    simulation.server.end_pod(key)


def _names_are_taken(simulation: "Simulation") -> bool:
    """Pods of an earlier job of that name may hang on such a node."""
    job = simulation.job()
    return any(job and owner_of(pod) != job.uid for pod in simulation.pods(live=False))


def _pods_meet(what: str, simulation: "Simulation") -> None:
    simulation.start_faults.put("", START_FAULTS[what])


def _has_no_place(simulation: "Simulation") -> bool:
    return not have_places(simulation, without={_BAD_NODE})


def _names_are_taken_or_no_place(simulation: "Simulation") -> bool:
    return _names_are_taken(simulation) or _has_no_place(simulation)


def _other_tenants_take_all(simulation: "Simulation") -> None:
    for node in simulation.server.node_manifests:
        simulation.fill(node)


def _lacks_room(simulation: "Simulation") -> bool:
    return not have_places(simulation)


def _scheduler_says(simulation: "Simulation") -> str:
    waits = any(not kubelet.node_of(pod) for pod in simulation.pods())
    return "nodes are available" if waits else ""


def _names_who_waits(simulation: "Simulation") -> bool:
    job = simulation.job()
    return job is not None and bool(job.status.gaps)


def _no_way_to_pods(simulation: "Simulation") -> None:
    simulation.launchers.all_cut_off_since = simulation.clock.seconds


def _creations_meet(error: Error, simulation: "Simulation") -> None:
    simulation.requests.refusals.add(Refusal(error, CREATIONS))


def _quota_is_short(simulation: "Simulation") -> None:
    refuse_beyond(simulation, _quota(simulation))


def refuse_beyond(simulation: "Simulation", pods: int, until: float = float("inf")) -> None:
    """Quota for so many pods; those that have ended take none."""

    def is_used_up() -> bool:
        live = (pod for pod in simulation.server.pods.values() if not kubelet.is_over(pod))
        return sum(1 for _ in live) >= pods

    error = answers.over_quota(pods)
    refusal = Refusal(error, ("create_pod",), until=until, applies=is_used_up)
    simulation.requests.refusals.add(refusal)


def _quota(simulation: "Simulation") -> int:
    job = simulation.job()
    return max(job.spec.replicas - 1, 1) if job else 1


def _has_no_deadline(simulation: "Simulation") -> bool:
    """A deadline counts from the first pod on."""
    job = simulation.job()
    if job is None or job.spec.active_deadline_seconds is None:
        return True
    return not simulation.invariants.ledgers[job.uid].pods


def _may_wait_for_quota(simulation: "Simulation") -> bool:
    job = simulation.job()
    if job is None or not _has_no_deadline(simulation):
        return False
    if job.spec.scheduling_timeout_seconds is not None:
        return True  # it releases its pods again and again
    elastic, quota = job.spec.elastic, _quota(simulation)
    image = job.spec.template["spec"]["containers"][0]["image"]
    shrinks = elastic and (elastic.min_replicas or 1) <= quota and image != WITHOUT_LAUNCHER
    return not shrinks


def _has_run(simulation: "Simulation") -> bool:
    """Return whether pods ran with this spec. One that never ran is wrong, unless rules differ."""
    job = simulation.job()
    if job is None or job.spec.restart.rules:
        return True
    assert simulation.server.job is not None
    wanted = shape_of(simulation.server.job)
    return any(wanted == ran for ran, _ in simulation.invariants.ledgers[job.uid].ran)


def _refused(simulation: "Simulation") -> str:
    """Return the part of the last answer that names no object."""
    return simulation.requests.refusals.last_message.split(" is forbidden: ")[-1][:24]


NO_ROOM: Final = LastingFault("no room", _other_tenants_take_all, _lacks_room, _scheduler_says)
NOTHING_LASTS: Final = LastingFault("nothing", lambda _: None)

_REFUSALS: Final[tuple[tuple[str, Error], ...]] = (
    ("a webhook that denies", answers.webhook_denies(403)),
    ("a webhook that is down", answers.webhook_down),
    ("a webhook that denies with 422", answers.webhook_denies(422)),
    ("a LimitRange", answers.over_limit_range),
    ("quota that is contended", answers.conflict),
    ("429", answers.too_many),
    ("requests that take too long", answers.over_time),
)

LASTING_FAULTS: Final = (
    *(
        LastingFault(
            f"a node with this: {what}", partial(_a_node_never_starts_a_pod, what), _has_no_place
        )
        for what in ("dead kubelet", "volume does not mount", "no network", "refuses pods")
    ),
    LastingFault(
        "a node that nobody hears of", _nobody_hears_of_a_node, _names_are_taken_or_no_place
    ),
    NO_ROOM,
    LastingFault("no way to pods", _no_way_to_pods, _names_who_waits),
    LastingFault("too little quota", _quota_is_short, _may_wait_for_quota, _refused),
    *(
        LastingFault(name, partial(_creations_meet, error), _has_no_deadline, _refused)
        for name, error in _REFUSALS
    ),
    *(
        LastingFault(what, partial(_pods_meet, what), _has_no_deadline, lambda _: "failed to pull")
        for what in ("registry answers 503", "registry is away")
    ),
    *(
        LastingFault(what, partial(_pods_meet, what), _has_run, lambda _: "not found")
        for what in ("no such image", "no such Secret")
    ),
)
