"""Troubles that last when all others have ended, and what a job makes of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ddp_operator.ports import Manifest

from tests.simulation import kubelet
from tests.simulation import refusals as answers
from tests.simulation.nodes import NODES, UNREACHABLE, saying, tolerates_everything
from tests.simulation.refusals import CREATIONS, Error, Refusal

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


@dataclass(frozen=True)
class Finale:
    """One such trouble."""

    name: str
    begin: Callable[["Simulation"], None]
    may_wait: Callable[["Simulation"], bool] = lambda _: False
    """Whether a job may wait until it is over, if it says what for."""
    last_words: Callable[["Simulation"], str] = lambda _: ""
    """Of who keeps it waiting."""


def end(simulation: "Simulation") -> None:
    """Whatever it is, it is over."""
    simulation.weather.refusals.clear()
    simulation.holds.clear()
    simulation.dead_nodes.clear()
    for node in NODES.values():
        simulation.server.put_node(node)


def lose_node(simulation: "Simulation", node: str) -> None:
    """A node and all on it are gone, as far as anybody can tell; what does not tolerate that is
    told to go.
    """
    simulation.dead_nodes.add(node)
    manifest = simulation.server.node_manifests[node]
    simulation.server.put_node(saying(manifest, UNREACHABLE))
    for pod in simulation.pods(live=False):
        if kubelet.node_of(pod) != node or kubelet.is_over(pod):
            continue
        simulation.take_away(pod)
        simulation.invariants.truth_of(pod).blows.add("Infrastructure")
        simulation.change(pod, kubelet.not_ready(pod))
        if not tolerates_everything(pod):
            evict_by_taint(simulation, pod)


def evict_by_taint(simulation: "Simulation", pod: Manifest) -> None:
    """As the taint manager does."""
    key = simulation.key_of(pod)
    text = "Taint manager: deleting due to NoExecute taint"
    now = simulation.clock.now()
    found = simulation.server.found_pod(key)
    simulation.change(pod, kubelet.targeted(found, "DeletionByTaintManager", text, now))
    simulation.server.end_pod(key)


def _creations_meet(error: Error, simulation: "Simulation") -> None:
    simulation.weather.refusals.add(Refusal(error, CREATIONS))


def refuse_beyond(simulation: "Simulation", pods: int, until: float = float("inf")) -> None:
    """Quota for so many pods; those that have ended take none."""

    def is_used_up() -> bool:
        live = (pod for pod in simulation.server.pods.values() if not kubelet.is_over(pod))
        return sum(1 for _ in live) >= pods

    error = answers.over_quota(pods)
    refusal = Refusal(error, ("create_pod",), until=until, applies=is_used_up)
    simulation.weather.refusals.add(refusal)


def _has_no_deadline(simulation: "Simulation") -> bool:
    """A deadline counts from the first pod on."""
    job = simulation.job()
    if job is None or job.spec.active_deadline_seconds is None:
        return True
    return not simulation.invariants.ledgers[job.uid].pods


def _refused(simulation: "Simulation") -> str:
    """What distinguishes an answer, without the name of the object."""
    return simulation.weather.refusals.last_words.split(" is forbidden: ")[-1][:24]


NOTHING_LASTS: Final = Finale("nothing", lambda _: None)

_REFUSALS: Final[tuple[tuple[str, Error], ...]] = (
    ("a webhook that denies", answers.webhook_denies(403)),
    ("a webhook that denies with 422", answers.webhook_denies(422)),
    ("a LimitRange", answers.over_limit_range),
)

FINALES: Final = (
    *(
        Finale(name, partial(_creations_meet, error), _has_no_deadline, _refused)
        for name, error in _REFUSALS
    ),
)
