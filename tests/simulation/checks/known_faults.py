"""Faults of the operator that are known, and the verdicts that they break.

Each has a test of the same name in `test_known_faults.py`, which is expected to fail. Random
histories end when they meet one. Remove a fault here, and the mark of its test, when it is fixed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.simulation.checks.placement import have_places
from tests.simulation.world import kubelet
from tests.simulation.world.scheduler import avoided

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


class KnownFaultError(Exception):
    """A check found a known fault, which is named."""


@dataclass(frozen=True)
class KnownFault:
    """A fault of the operator."""

    name: str
    claim: str
    """A pattern of the claims that it breaks."""
    applies: Callable[["Simulation"], bool]
    """Returns whether it can be the cause in this history."""

    def explains(self, simulation: "Simulation", claim: str) -> bool:
        """Return whether it breaks this claim."""
        return bool(re.search(self.claim, claim)) and self.applies(simulation)


def _is_complete(simulation: "Simulation") -> bool:
    job, total = simulation.job(), simulation.training.total_steps
    saved = job.status.checkpoint if job else None
    return saved is not None and total is not None and saved.step >= total


def _avoids_nodes(simulation: "Simulation") -> bool:
    job = simulation.job()
    pending = [pod for pod in simulation.pods() if not kubelet.node_of(pod)]
    return job is not None and any(map(avoided, pending)) and have_places(simulation)


def _kubelet_refuses(simulation: "Simulation") -> bool:
    return "refuses pods" in simulation.lasting_fault.name


def _lacks_only_spares(simulation: "Simulation") -> bool:
    job = simulation.job()
    if job is None or not (job.spec.spares and simulation.requests.refusals.active):
        return False
    return job.status.reason == "APIServerError"


def _has_little_room(simulation: "Simulation") -> bool:
    return simulation.server.fleet.has_gpus or bool(simulation.scheduler.tenants.taken)


def _is_cut_off(simulation: "Simulation") -> bool:
    return simulation.launchers.all_cut_off_since is not None


_WAITS: Final = "not at rest in spite of it"
"""Claims that a job waits while a fault lasts, though it need not."""
KNOWN_FAULTS: Final = (
    KnownFault(
        "typo_in_pattern_of_running_job_fails_it",
        "a job that has run failed for its new spec",
        lambda _: True,
    ),
    KnownFault("pod_lost_after_last_step_counts_as_completed", "counts as a success", _is_complete),
    KnownFault(
        "export_longer_than_progress_deadline_is_a_hang", "has made its last step", _is_complete
    ),
    KnownFault(
        "pod_leaves_node_although_no_other_has_room",
        "no other node has a place for it",
        _has_little_room,
    ),
    KnownFault("avoided_node_is_the_only_place", "not at rest", _avoids_nodes),
    KnownFault("refused_spare_keeps_status_from_being_recorded", _WAITS, _lacks_only_spares),
    KnownFault("refusing_kubelet_is_never_avoided", _WAITS, _kubelet_refuses),
    KnownFault(
        "unreached_healthy_pod_is_replaced_again", "is healthy and not reached", _is_cut_off
    ),
    KnownFault("unreached_new_pods_wait_for_ever", _WAITS, _is_cut_off),
)
