"""All that can happen to a job beside the operator's own work: one function for each.

An action that finds nothing to act on does nothing. The first option of each choice is the
plainest one, since histories shrink towards it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddp_operator.api.constants import LABEL_JOB_NAME, LABEL_SERVING
from ddp_operator.job import manifests
from ddp_operator.job.pods import Identity
from ddp_operator.ports import ConflictError, Manifest, UnavailableError

from tests.good_manifests import container, template
from tests.simulation import kubelet
from tests.simulation.cluster import Fault
from tests.simulation.history import Choices

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

Action = Callable[["Simulation", Choices], None]

PAUSES = (0.05, 1.0, 0.0, 4.0, 15.0, 0.01)
"""Seconds between two steps; short ones leave the operator's writes under way."""

_RULES: tuple[list[dict[str, Any]], ...] = (
    [],
    [],
    [{"exitCodes": [2], "action": "Ignore"}, {"messageRegex": "CUDA", "action": "RestartGang"}],
    [{"exitCodes": [139], "action": "FailJob"}, {"ranks": [0], "action": "RestartPod"}],
    [{"classes": ["Disruption"], "action": "RestartGang", "charged": True}],
    [{"reasons": ["Error"], "action": "RestartPod", "charged": False}],
)

_FAILURE_CODES = (1, 137, 75, 143, 2, 139, 1, 137, 75, 1, 64)


_WHY_NOT = ("Unschedulable", *3 * ("Unschedulable", "ErrImagePull"), "InvalidImageName")

_LAST_WORDS = (
    "",
    "CUDA error: out of memory",
    "Connection closed by peer",
    "CUDA error: uncorrectable ECC error encountered",
    '{"step": 77, "rank": 0, "error": "loss is nan"}',
)


def new_spec(choices: Choices) -> dict[str, Any]:
    """A job as a user may write it."""
    spec: dict[str, Any] = {
        "replicas": 1 + choices.upto(2),
        "restart": {
            "scope": choices.of(("Gang", "Pod")),
            "maxRestarts": choices.upto(3),
            "resetAfterProgress": choices.of((True, False)),
            "rules": choices.of(_RULES),
        },
        "cleanPodPolicy": choices.of(("Running", "All", "None")),
        "suspend": choices.upto(7) == 7,
    }
    if choices.upto(3) == 3:
        spec["activeDeadlineSeconds"] = 1500
    if choices.upto(3) == 3:
        spec["ttlSecondsAfterFinished"] = choices.of((300, 0))
    if choices.upto(1):
        spec["progressDeadlineSeconds"] = 60
    if choices.upto(1):
        spec["schedulingTimeoutSeconds"] = 30
    if choices.upto(1):
        spec["template"] = template(container(resources={"limits": {"memory": "1Gi"}}))
    return spec


def _pick(simulation: "Simulation", choices: Choices, *, live: bool = True) -> Manifest | None:
    pods = simulation.pods(live=live)
    return choices.of(pods) if pods else None


def _pick_running(simulation: "Simulation", choices: Choices) -> Manifest | None:
    running = [pod for pod in simulation.pods() if kubelet.is_running(pod)]
    return choices.of(running) if running else None


def _name(pod: Manifest) -> str:
    name: str = pod["metadata"]["name"]
    return name


# Time


def time_passes(simulation: "Simulation", choices: Choices) -> None:
    seconds = choices.of((0.0, 2.0, 10.0, 60.0, 400.0))
    simulation.advance(seconds)
    if seconds:
        simulation.tell(f"{seconds:g} s have passed")


def the_operators_clock_jumps(simulation: "Simulation", choices: Choices) -> None:
    skew = choices.of((0.0, 2.0, -2.0, 30.0, -5.0, 700.0))
    simulation.clock.operator_skew_seconds = skew
    simulation.invariants.clock_is_right = False
    simulation.tell(f"the operator's clock is {skew:g} s ahead")


# Pods


def pods_progress(simulation: "Simulation", choices: Choices) -> None:
    """All pods come as far as kubelets bring them, or one comes one step further."""
    all_the_way = choices.upto(2) < 2
    pods = simulation.pods()
    for pod in pods if all_the_way else [choices.of(pods)] if pods else []:
        if kubelet.is_deleting(pod) or kubelet.trainer_exit(pod):
            continue
        if not kubelet.node_of(pod):
            node = choices.of(("node-a", "node-b", "node-c"))
            if node in simulation.dead_nodes:
                continue
            placed = kubelet.scheduled(pod, node)
        else:
            placed = pod
        if all_the_way:
            simulation.start_trainer(placed, ready=True)
        elif placed is not pod:
            simulation.change(pod, placed)
        else:
            simulation.start_trainer(pod, ready=kubelet.is_running(pod))
    simulation.tell(f"{'all pods are' if all_the_way else 'one pod is'} further")


def a_trainer_exits(simulation: "Simulation", choices: Choices) -> None:
    if pod := _pick_running(simulation, choices):
        code = choices.of((*_FAILURE_CODES, 0))
        message = choices.of(_LAST_WORDS)
        side_car_runs = choices.upto(7) == 7
        simulation.end_trainer(pod, code, message=message, side_car_runs=side_car_runs)
        simulation.tell(f"the trainer of {_name(pod)} exits with {code} {message}")
    else:
        pods_progress(simulation, choices)


def a_trainer_takes_its_peers_along(simulation: "Simulation", choices: Choices) -> None:
    if first := _pick_running(simulation, choices):
        code, pause = choices.of(_FAILURE_CODES), choices.of((0.0, 0.5, 2.0))
        simulation.end_trainer(first, code)
        simulation.tell(f"the trainer of {_name(first)} exits with {code}, its peers with 75")
        simulation.advance(pause)
        for pod in simulation.pods():
            if kubelet.is_running(pod):
                simulation.end_trainer(pod, 75, message="lost a peer")


def training_proceeds(simulation: "Simulation", choices: Choices) -> None:
    """Whoever trains moves by some steps, and mostly the operator asks how far."""
    steps, save, asked = choices.of((10, 1)), choices.of((False, True)), choices.upto(3) < 3
    for pod in simulation.pods():
        if kubelet.is_running(pod) and not kubelet.is_deleting(pod):
            step = simulation.training.proceed(pod, steps=steps, save=save)
            simulation.invariants.truth_of(pod).moved_at = simulation.clock.seconds
            simulation.tell(f"{_name(pod)} comes to step {step}{', which is saved' * save}")
    if asked:
        _ask_for_progress(simulation)


def training_hangs(simulation: "Simulation", choices: Choices) -> None:
    """Asked twice, the trainer tells of the same step."""
    _ask_for_progress(simulation)
    simulation.advance(choices.of((70.0, 25.0)))
    _ask_for_progress(simulation)


def _ask_for_progress(simulation: "Simulation") -> None:
    if simulation.operator is not None:
        simulation.operator.ask_for_progress()
        simulation.tell("the operator asks for progress")


def training_ends_well(simulation: "Simulation", choices: Choices) -> None:
    del choices
    for pod in simulation.pods():
        if kubelet.is_running(pod):
            simulation.end_trainer(pod, 0, message="final loss 0.1")
    simulation.tell("all running trainers exit with 0")


def a_pod_is_evicted(simulation: "Simulation", choices: Choices) -> None:
    pod = _pick(simulation, choices)
    if pod is None or not kubelet.node_of(pod):
        return
    how = choices.of(("Evicted", "EvictionByEvictionAPI", "PreemptionByScheduler", "NodeShutdown"))
    if not kubelet.trainer_exit(pod):
        simulation.invariants.truth_of(pod).taken_away = True
    if how in ("Evicted", "NodeShutdown"):
        simulation.change(pod, kubelet.failed(pod, how))
    else:
        simulation.change(pod, kubelet.targeted(pod, how, simulation.clock.now()))
        simulation.server.end_pod(simulation.key_of(pod))
    simulation.tell(f"{_name(pod)} is disrupted: {how}")


def a_person_deletes_a_pod(simulation: "Simulation", choices: Choices) -> None:
    pod = _pick(simulation, choices, live=False)
    if pod is None:
        return
    if not kubelet.trainer_exit(pod):
        simulation.invariants.truth_of(pod).taken_away = True
    if choices.upto(1):
        simulation.server.remove_pod(simulation.key_of(pod))
        simulation.tell(f"{_name(pod)} vanishes")
    else:
        simulation.server.end_pod(simulation.key_of(pod))
        simulation.tell(f"somebody deletes {_name(pod)}")


def terminating_pods_go(simulation: "Simulation", choices: Choices) -> None:
    """Others hang in Terminating for as long as this does not happen to them."""
    code, only_exit = choices.of((143, 0, 137, 1)), choices.upto(3) == 3
    for pod in simulation.pods(live=False):
        if not kubelet.is_deleting(pod) or kubelet.node_of(pod) in simulation.dead_nodes:
            continue
        if only_exit and kubelet.is_running(pod):
            simulation.end_trainer(pod, code)
        elif not only_exit:
            simulation.finish_termination(pod, code)
    simulation.tell(f"terminating pods end with {code}")


def a_pod_cannot_start(simulation: "Simulation", choices: Choices) -> None:
    pod = _pick(simulation, choices)
    if pod is None or pod["status"]["phase"] != "Pending":
        return
    why = choices.of(_WHY_NOT)
    if why == "Unschedulable":
        if not kubelet.node_of(pod):
            simulation.change(pod, kubelet.unschedulable(pod))
    else:
        placed = pod if kubelet.node_of(pod) else kubelet.scheduled(pod, "node-a")
        simulation.change(pod, kubelet.not_starting(placed, why))
    simulation.tell(f"{_name(pod)} cannot start: {why}")


# Nodes


def a_node_dies(simulation: "Simulation", choices: Choices) -> None:
    """Its pods are told to go, and nobody is there to tell that they did."""
    node = choices.of(("node-a", "node-b", "node-c"))
    simulation.dead_nodes.add(node)
    for pod in simulation.pods(live=False):
        if kubelet.node_of(pod) == node and not kubelet.is_over(pod):
            if not kubelet.trainer_exit(pod):
                simulation.invariants.truth_of(pod).taken_away = True
            simulation.server.end_pod(simulation.key_of(pod))
    simulation.tell(f"{node} dies")


def dead_nodes_come_back(simulation: "Simulation", choices: Choices) -> None:
    del choices
    if simulation.dead_nodes:
        simulation.tell("dead nodes come back")
        simulation.dead_nodes.clear()


# The operator, and its way to the API server


def the_operator_crashes(simulation: "Simulation", choices: Choices) -> None:
    """Now, or at one of its next writes, before or after that took effect."""
    writes = choices.upto(6)
    simulation.down_seconds = choices.of((0.0, 1.0, 20.0))
    if writes == 0:
        simulation.kill_operator()
        return
    simulation.weather.writes_until_crash = writes - 1
    simulation.weather.crash_after_effect = bool(choices.upto(1))
    when = "after" if simulation.weather.crash_after_effect else "before"
    simulation.tell(f"the operator is about to crash {when} its write number {writes}")


def writes_fail(simulation: "Simulation", choices: Choices) -> None:
    fault = choices.of(
        (
            Fault(UnavailableError("500", status=500)),
            Fault(ConflictError("409", status=409)),
            Fault(UnavailableError("429", status=429, retry_after_seconds=7)),
            Fault(UnavailableError("timeout"), done=True, seconds=30),
            Fault(UnavailableError("timeout"), seconds=30),
            Fault(seconds=6),
        )
    )
    writes_before, times = choices.upto(2), 1 + choices.upto(3)
    faults = [Fault()] * writes_before + [fault] * times
    simulation.weather.faults.extend(faults)
    simulation.tell(f"{times} writes, after {writes_before} others, meet {fault}")


def quota_is_used_up(simulation: "Simulation", choices: Choices) -> None:
    seconds = choices.of((5.0, 30.0, 100.0))
    simulation.server.no_quota_until = simulation.clock.seconds + seconds
    simulation.tell(f"quota is used up for {seconds:g} s")


def a_watch_has_trouble(simulation: "Simulation", choices: Choices) -> None:
    operator = simulation.operator
    if operator is None:
        return
    name = choices.of(("pods", "jobs"))
    watch = operator.pods if name == "pods" else operator.jobs
    kind, seconds = choices.of(("stall", "lose", "repeat")), choices.of((2.0, 10.0, 45.0))
    getattr(watch, kind)(seconds)
    simulation.tell(f"the watch of {name}: {kind} for {seconds:g} s")


# Users


def the_job_is_suspended(simulation: "Simulation", choices: Choices) -> None:
    del choices
    if simulation.server.job and not simulation.server.job["spec"].get("suspend"):
        simulation.server.edit_job({"suspend": True})
        simulation.tell("a user suspends the job")


def the_job_is_resumed(simulation: "Simulation", choices: Choices) -> None:
    """Maybe with other replicas."""
    if simulation.server.job and simulation.server.job["spec"].get("suspend"):
        if choices.upto(1):
            replicas = 1 + choices.upto(2)
            simulation.server.edit_job({"replicas": replicas})
            simulation.tell(f"a user edits replicas: {replicas}")
        simulation.server.edit_job({"suspend": False})
        simulation.tell("a user lets the job go on")


def the_template_changes(simulation: "Simulation", choices: Choices) -> None:
    if simulation.server.job:
        image = choices.of(("registry.example/trainer:2", "registry.example/trainer:1"))
        simulation.server.edit_job({"template": template(container(image=image))})
        simulation.tell(f"a user edits the template: {image}")


def the_budget_changes(simulation: "Simulation", choices: Choices) -> None:
    if simulation.server.job:
        limit = choices.upto(4)
        restart = {**simulation.server.job["spec"]["restart"], "maxRestarts": limit}
        simulation.server.edit_job({"restart": restart})
        simulation.tell(f"a user edits maxRestarts: {limit}")


def the_job_is_deleted(simulation: "Simulation", choices: Choices) -> None:
    """And, mostly, applied again at once, before its pods are gone."""
    if simulation.server.job is not None:
        simulation.server.remove_job()
        simulation.tell("a user deletes the job")
        if choices.upto(3):
            a_job_is_applied(simulation, choices)


def a_job_is_applied(simulation: "Simulation", choices: Choices) -> None:
    """Where none is, under the name of those before."""
    if simulation.server.job is None:
        spec = new_spec(choices)
        simulation.server.create_job(spec)
        simulation.tell(f"a user applies {spec}")


def garbage_is_collected(simulation: "Simulation", choices: Choices) -> None:
    """Pods of jobs that are gone go, too, and so do strangers."""
    del choices
    simulation.server.collect_garbage()
    strangers_go(simulation)


def a_stranger_takes_a_name(simulation: "Simulation", choices: Choices) -> None:
    """A pod of nobody bears a name that the job may need, with its labels or without."""
    job = simulation.job()
    if job is None:
        return
    status = job.status
    identity = Identity(choices.upto(2), status.attempt + choices.upto(1))
    manifest = manifests.pod(job, identity)
    labels = {**manifest["metadata"]["labels"], LABEL_SERVING: "false"}
    if choices.upto(1):
        del labels[LABEL_JOB_NAME]
    metadata = {**manifest["metadata"], "labels": labels, "ownerReferences": []}
    if simulation.key_of(manifest) not in simulation.server.pods:
        stranger = {**manifest, "metadata": metadata, "status": {"phase": "Running"}}
        simulation.server.store_pod(stranger)
        simulation.tell(f"a stranger takes the name {_name(manifest)}")


def strangers_go(simulation: "Simulation") -> None:
    """Pods of nobody go; for the calm, too."""
    for pod in simulation.pods(live=False):
        if not pod["metadata"]["ownerReferences"]:
            simulation.server.remove_pod(simulation.key_of(pod))


_WEIGHTS: tuple[tuple[Action, int], ...] = (
    (time_passes, 14),
    (pods_progress, 54),
    (training_proceeds, 22),
    (training_hangs, 6),
    (a_trainer_exits, 22),
    (a_trainer_takes_its_peers_along, 10),
    (training_ends_well, 4),
    (a_pod_is_evicted, 10),
    (a_person_deletes_a_pod, 7),
    (terminating_pods_go, 16),
    (a_pod_cannot_start, 6),
    (a_node_dies, 5),
    (dead_nodes_come_back, 8),
    (the_operator_crashes, 11),
    (writes_fail, 10),
    (quota_is_used_up, 4),
    (a_watch_has_trouble, 8),
    (the_job_is_suspended, 4),
    (the_job_is_resumed, 10),
    (the_template_changes, 3),
    (the_budget_changes, 3),
    (the_job_is_deleted, 3),
    (garbage_is_collected, 6),
    (a_stranger_takes_a_name, 2),
    (a_job_is_applied, 8),
)

TABLE: tuple[Action, ...] = tuple(action for action, weight in _WEIGHTS for _ in range(weight))
"""The action of each byte; more bytes for what happens more often."""

assert len(TABLE) == 256, f"weights must sum to 256, not {len(TABLE)}"
