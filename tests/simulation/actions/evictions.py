"""Ways in which pods are taken from a job: by kubelets, by controllers, by people.

Held against Kubernetes 1.30 to 1.37: pkg/kubelet/eviction, pkg/kubelet/nodeshutdown,
pkg/kubelet/lifecycle, the scheduler's preemption, the eviction API.
"""

from typing import Final

from ddp_operator.ports import Manifest

from tests.simulation.actions.picks import name_of, pick
from tests.simulation.checks.truth import Class
from tests.simulation.history import Choices
from tests.simulation.simulation import Simulation
from tests.simulation.world import kubelet

_LOW: Final = (
    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. Container "
    "trainer was using 30Gi, request is 1Gi, has larger consumption of memory. "
)
_SHUTDOWN: Final = "Pod was terminated in response to imminent node shutdown."
_BY_KUBELET: Final = (("Evicted", _LOW), ("Terminated", _SHUTDOWN))
_OWN_STORAGE: Final = (
    'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ',
    'Container trainer exceeded its local ephemeral storage limit "1Gi". ',
    "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
)
_BY_API: Final = (
    ("EvictionByEvictionAPI", "Eviction API: evicting"),
    ("PreemptionByScheduler", "Preempted by pod 0c7f on node node-a"),
    ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
    ("DeletionByDeviceTaintManager", "Device Taint manager: deleting due to NoExecute taint"),
)
_REJECTED: Final[tuple[tuple[str, str, Class], ...]] = (
    (
        "UnexpectedAdmissionError",
        "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate "
        "unhealthy devices nvidia.com/gpu, which is unexpected",
        "Infrastructure",
    ),
    (
        "OutOfcpu",
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 8000, used: 60000, "
        "capacity: 64000",
        "Disruption",
    ),
    ("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed", "Disruption"),
    ("NodeShutdown", "Pod was rejected as the node is shutting down.", "Disruption"),
)


def a_pod_is_evicted(simulation: Simulation, choices: Choices) -> None:
    """By its kubelet, for its node's sake or its own storage's; by the API, or at once by
    admission. What its script exits with then, 0 included, says nothing.
    """
    pod = pick(simulation, choices)
    if pod is None or not kubelet.node_of(pod):
        return
    how = choices.upto(3)
    code = choices.of((None, 0, 137, 143))
    if how == 0:
        _by_kubelet(simulation, pod, choices.of(_BY_KUBELET), code)
    elif how == 1:
        reason, message = choices.of(_BY_API)
        simulation.take_away(pod)
        simulation.change(pod, kubelet.targeted(pod, reason, message, simulation.clock.now()))
        simulation.server.end_pod(simulation.key_of(pod))
        simulation.log(f"{name_of(pod)} is taken: {reason}")
    elif how == 2:
        _for_its_storage(simulation, pod, choices.of(_OWN_STORAGE), code)
    elif not (kubelet.is_running(pod) or simulation.is_ending(pod)):
        reason, message, class_ = choices.of(_REJECTED)
        simulation.invariants.note_fault(pod, class_)
        simulation.change(pod, kubelet.failed(pod, reason, message))
        simulation.log(f"{name_of(pod)} is rejected: {reason}")


def _by_kubelet(
    simulation: Simulation, pod: Manifest, why: tuple[str, str], code: int | None
) -> None:
    """Announced first; the phase follows when its containers have ended, at once or later."""
    simulation.take_away(pod)
    now = simulation.clock.now()
    simulation.change(pod, kubelet.targeted(pod, "TerminationByKubelet", why[1], now))
    _end(simulation, pod, why, code)


def _for_its_storage(simulation: Simulation, pod: Manifest, message: str, code: int | None) -> None:
    """Nothing announces it: no node wants the pod gone."""
    if not kubelet.is_running(pod) or simulation.is_ending(pod):
        return
    simulation.overflow(pod)
    _end(simulation, pod, ("Evicted", message), code)


def _end(simulation: Simulation, pod: Manifest, why: tuple[str, str], code: int | None) -> None:
    simulation.evicted[pod["metadata"]["uid"]] = why
    if code is not None:
        found = simulation.server.found_pod(simulation.key_of(pod))
        simulation.finish_termination(found, code)
    ended = "" if code is None else f", and ends with {code}"
    simulation.log(f"{name_of(pod)} is evicted: {why[0]}: {why[1][:30]}{ended}")


def a_person_deletes_a_pod(simulation: Simulation, choices: Choices) -> None:
    pod = pick(simulation, choices, live=False)
    if pod is None:
        return
    simulation.take_away(pod)
    if choices.upto(1):
        simulation.server.remove_pod(simulation.key_of(pod))
        simulation.log(f"{name_of(pod)} vanishes")
    else:
        simulation.server.end_pod(simulation.key_of(pod))
        simulation.log(f"somebody deletes {name_of(pod)}")


def finished_pods_are_collected(simulation: Simulation, choices: Choices) -> None:
    """As the pod garbage collector does when there are too many, or with a node that goes."""
    del choices
    for pod in simulation.pods(live=False):
        if kubelet.is_over(pod):
            simulation.server.remove_pod(simulation.key_of(pod))
    simulation.log("finished pods are collected")


def terminating_pods_go(simulation: Simulation, choices: Choices) -> None:
    """Others hang in Terminating for as long as this does not happen to them."""
    code, only_exit = choices.of((143, 0, 137, 1)), choices.upto(3) == 3
    for pod in simulation.pods(live=False):
        uid, node = pod["metadata"]["uid"], kubelet.node_of(pod)
        is_asked = kubelet.is_deleting(pod) or uid in simulation.evicted
        if not is_asked or node in simulation.dead_nodes:
            continue
        if only_exit and kubelet.is_running(pod):
            simulation.end_trainer(pod, code)
        elif not only_exit:
            simulation.finish_termination(pod, code)
    simulation.log(f"terminating pods end with {code}")
