"""The end of a history: all faults end, but for one that may last. Then the job must reach the
state that its user wants.
"""

from ddp_operator.api.constants import LABEL_ATTEMPT, LABEL_INDEX, LABEL_REPLACEMENT
from ddp_operator.ports import Manifest

from tests.simulation.actions import lasting, users
from tests.simulation.checks.invariants import wanted_by, world_of_pod
from tests.simulation.checks.placement import have_places
from tests.simulation.simulation import Simulation
from tests.simulation.world import kubelet
from tests.simulation.world.start_faults import Stage

_ROUNDS = 12
_LASTING_ROUNDS = 16
"""A node that starts no pod is worse than one with a broken device after five more failures. Each
takes ten minutes, and a pause as long.
"""
_ROUND_SECONDS = 610
"""Longer than any pause between restarts."""
_PLACING_SECONDS = 10
"""Well within a user's `schedulingTimeoutSeconds`: kube-scheduler places a pod that fits within
seconds, however long its kubelet takes.
"""
_STEPS_PER_ROUND = 4
"""Refused writes are repeated each minute and recorded: in a round, as many as in four steps."""
_WRITES_SECONDS = 5
"""Enough for the writes that follow a stored decision."""
_FIRST_CHOICE = ("node-a",)

_IDLE_SECONDS = 1000
_MOST_IDLE_PLANS = 4
_MOST_PLANS_PER_STEP = 6
_MOST_WRITES_PER_STEP = 6


def converge(simulation: Simulation) -> None:
    """End all faults, and require that the job reaches the state that its user wants."""
    fault = simulation.lasting_fault
    simulation.log(f"all faults end, but for {fault.name}")
    _clear(simulation)
    events_before = len(simulation.requests.messages)
    fault.begin(simulation)
    lasts = fault is not lasting.NOTHING_LASTS
    if lasts:
        if not _come_to_rest(simulation, _LASTING_ROUNDS):
            has_room = have_places(simulation)
            may_wait = not has_room or fault.may_wait(simulation)
            simulation.require(may_wait, f"not at rest in spite of it: {_in_words(simulation)}")
            if has_room or fault is lasting.NO_ROOM:  # otherwise room is what it waits for
                _require_message(simulation, events_before)
        lasting.end(simulation)
        simulation.log("nothing lasts any longer")
    if not _come_to_rest(simulation, _ROUNDS):
        places = have_places(simulation)
        simulation.require(not places, f"not at rest in the end: {_in_words(simulation)}")
        _require_words(simulation, "nodes are available", events_before)
        return
    _idle(simulation)


def _clear(simulation: Simulation) -> None:
    simulation.requests.clear()
    simulation.launchers.clear()
    lasting.end(simulation)
    simulation.clock.operator_skew_seconds = 0.0
    simulation.down_seconds = 0.0  # a write under way may still be its last
    simulation.server.remove_foreign_pods()
    users.correct_pattern(simulation)
    if simulation.operator is None:
        simulation.start_operator()


def _come_to_rest(simulation: Simulation, rounds: int) -> bool:
    for _ in range(rounds):
        simulation.steps += _STEPS_PER_ROUND
        simulation.advance(0.1)
        assert simulation.operator is not None
        simulation.operator.heal()
        simulation.operator.listen()
        for _ in range(_ROUND_SECONDS // _PLACING_SECONDS):
            simulation.advance(_PLACING_SECONDS)
            _place_waiting_pods(simulation)
        _require_only_current_pods(simulation)
        if _at_rest(simulation):
            return True
        _kubelets_catch_up(simulation)
    simulation.advance(_WRITES_SECONDS)
    if simulation.job() is None:  # deleted just now, and Kubernetes removes its pods
        _kubelets_catch_up(simulation)
    return _at_rest(simulation)


def _place_waiting_pods(simulation: Simulation) -> None:
    for pod in simulation.pods():
        if kubelet.node_of(pod) or kubelet.is_gated(pod) or kubelet.is_deleting(pod):
            continue
        if simulation.scheduler.feasible(pod) or not kubelet.is_unschedulable(pod):
            simulation.bring_further(pod, nodes=_FIRST_CHOICE, most=Stage.SCHEDULED)


def _require_message(simulation: Simulation, events_before: int) -> None:
    """Require that a job that waits says why, in the words of the cause."""
    _require_words(simulation, simulation.lasting_fault.last_message(simulation), events_before)


def _require_words(simulation: Simulation, words: str, events_before: int) -> None:
    job = simulation.job()
    if job is None or not words:
        return
    messages = [condition.message for condition in job.status.conditions]
    messages += simulation.requests.messages[events_before:]
    heard = any(words in message for message in messages)
    simulation.require(heard, f"nobody hears of {words!r}: {_in_words(simulation)}")


def _require_only_current_pods(simulation: Simulation) -> None:
    """Require that no pod of the past runs, and none of a suspended job."""
    wrong = _wrong_pods(simulation)
    if wrong:  # perhaps decided just now: the status is written before pods are deleted
        simulation.advance(_WRITES_SECONDS)
        wrong &= _wrong_pods(simulation)
    simulation.require(not wrong, "; ".join(sorted(wrong)))


def _wrong_pods(simulation: Simulation) -> set[str]:
    """Return what is wrong with each pod that the job's spec and status do not want."""
    job = simulation.job()
    if job is None:
        return set()
    status, wrong = job.status, set()
    for pod in simulation.pods(live=False):
        owned = pod["metadata"]["ownerReferences"][0]["uid"] == job.uid
        if not owned or kubelet.is_deleting(pod) or kubelet.is_over(pod):
            continue
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        index, attempt = labels[LABEL_INDEX], int(labels[LABEL_ATTEMPT])
        replacement = int(labels.get(LABEL_REPLACEMENT, 0))
        if (attempt, replacement) != (
            status.attempt,
            status.bookkeeping.replacements.get(index, 0),
        ):
            wrong.add(f"{name} was left running")
        world = (world_of_pod(pod), wanted_by(job.spec))
        # Edits of a finished job do nothing, and an elastic one is of any size.
        fixed = not (status.finished or job.spec.elastic)
        if fixed and world[0] is not None and world[0] != world[1]:
            wrong.add(f"{name} has the world {world[0]}, not {world[1]}")
        if status.is_true("Suspended"):
            wrong.add(f"{name} outlived the suspension")
    return wrong


def _kubelets_catch_up(simulation: Simulation) -> None:
    simulation.server.collect_garbage()
    job = simulation.job()
    running = job is not None and job.status.phase == "Running"
    for pod in simulation.pods(live=False):
        if kubelet.node_of(pod) in simulation.dead_nodes:
            continue
        if kubelet.is_deleting(pod) or pod["metadata"]["uid"] in simulation.evicted:
            simulation.finish_termination(pod, 143)
        elif kubelet.is_running(pod) and _never_starts(simulation, pod):
            continue
        elif kubelet.is_running(pod) and running:
            simulation.end_trainer(pod, 0)
        elif not kubelet.is_over(pod) and not kubelet.trainer_exit(pod):
            if kubelet.is_gated(pod):
                pod = kubelet.ungated(pod)  # noqa: PLW2901
                simulation.change(pod, pod)
            simulation.bring_further(pod, nodes=_FIRST_CHOICE)


def _never_starts(simulation: Simulation, pod: Manifest) -> bool:
    """Return whether its processes have ended or not begun; what waited too long ends with them."""
    if simulation.launchers.works(pod):
        return False
    simulation.end_after_waiting(pod)
    return True


def _at_rest(simulation: Simulation) -> bool:
    """Return whether nothing is left to do: no job, a finished one, or a suspended one."""
    job = simulation.job()
    pods = [
        pod
        for pod in simulation.pods(live=False)
        if kubelet.node_of(pod) not in simulation.dead_nodes or not kubelet.is_deleting(pod)
    ]
    if job is None:
        return not pods
    live = [pod for pod in pods if not kubelet.is_over(pod)]
    if job.status.finished:
        policy_left_them = job.spec.clean_pod_policy == "None"
        return not any(map(kubelet.is_deleting, pods)) and (policy_left_them or not live)
    return job.status.is_true("Suspended") and job.spec.suspend and not live


def _in_words(simulation: Simulation) -> str:
    job = simulation.job()
    pods = [
        (pod["metadata"]["name"], kubelet.node_of(pod), pod["status"])
        for pod in simulation.pods(live=False)
    ]
    return f"{job.status if job else 'no job'}, {pods}"


def _idle(simulation: Simulation) -> None:
    """An operator that has nothing to do does nothing."""
    assert simulation.operator is not None
    operator, cluster = simulation.operator, simulation.operator.cluster
    plans, writes = operator.plans, cluster.writes
    job_was_there = simulation.server.job is not None
    simulation.advance(_IDLE_SECONDS)
    if job_was_there == (simulation.server.job is not None):  # else its time to live was over
        simulation.require(cluster.writes == writes, "it writes although nothing has changed")
    simulation.require(operator.plans - plans <= _MOST_IDLE_PLANS, "it plans without end")
    steps = simulation.steps + _ROUNDS
    plans, writes = simulation.plans + operator.plans, simulation.writes + cluster.writes
    claim = f"{plans} plans and {writes} writes in {steps} steps"
    simulation.require(plans <= _MOST_PLANS_PER_STEP * steps, claim)
    simulation.require(writes <= _MOST_WRITES_PER_STEP * steps, claim)
