"""What trainers and their pods do, and what is done to them."""

from ddp_operator.job.membership.order import is_due
from ddp_operator.ports import Manifest

from tests.simulation import kubelet
from tests.simulation.history import Choices
from tests.simulation.launchers import starts_anew
from tests.simulation.simulation import Simulation

_FAILURE_CODES = (1, 137, 75, 143, 2, 139, 1, 137, 75, 1, 64)

_WHY_NOT = ("Unschedulable", *3 * ("Unschedulable", "ErrImagePull"), "InvalidImageName")

_LAST_WORDS = (
    "",
    "CUDA error: out of memory",
    "Connection closed by peer",
    "CUDA error: uncorrectable ECC error encountered",
    '{"step": 77, "rank": 0, "error": "loss is nan"}',
    # What people make up: of wrong types, without end, not for a terminal.
    '{"step": 1e999, "rank": -1, "error": {"checkpoint": NaN}, "checkpoint": "\\ud800"}',
    '{"error":' * 400,
    "\x1b[2J\x00\r" + "CUDA error " * 300,
)


def _pick(simulation: Simulation, choices: Choices, *, live: bool = True) -> Manifest | None:
    pods = simulation.pods(live=live)
    return choices.of(pods) if pods else None


def _pick_running(simulation: Simulation, choices: Choices) -> Manifest | None:
    running = [pod for pod in simulation.pods() if kubelet.is_running(pod)]
    return choices.of(running) if running else None


def _name(pod: Manifest) -> str:
    name: str = pod["metadata"]["name"]
    return name


def pods_progress(simulation: Simulation, choices: Choices) -> None:
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
    job = simulation.job()
    if job is not None and is_due(job) and simulation.operator is not None:
        simulation.operator.listen()


def a_trainer_exits(simulation: Simulation, choices: Choices) -> None:
    if pod := _pick_running(simulation, choices):
        code = choices.of((*_FAILURE_CODES, 0))
        message = choices.of(_LAST_WORDS)
        side_car_runs = choices.upto(7) == 7
        simulation.end_trainer(pod, code, message=message, side_car_runs=side_car_runs)
        simulation.tell(f"the trainer of {_name(pod)} exits with {code} {message}")
    else:
        pods_progress(simulation, choices)


def processes_end_in_their_pod(simulation: Simulation, choices: Choices) -> None:
    """A launcher keeps its pod, and tells; mostly the operator hears of it."""
    running = [pod for pod in simulation.pods() if kubelet.is_running(pod) and starts_anew(pod)]
    if not running:
        a_trainer_exits(simulation, choices)
        return
    pod, code = choices.of(running), choices.of(_FAILURE_CODES[:-1])
    if simulation.launchers.fail(pod, code, choices.of(_LAST_WORDS)):
        simulation.invariants.truth_of(pod).exit_code = code
        simulation.tell(f"the processes of {_name(pod)} end with {code}")
    if choices.upto(3) < 3 and simulation.operator is not None:
        simulation.operator.listen()
        simulation.tell("the operator listens to the launchers")


def launchers_are_cut_off(simulation: Simulation, choices: Choices) -> None:
    """From the operator or from each other, for a while or for longer than anybody waits; or only
    their answers get lost.
    """
    how, launchers = choices.upto(4), simulation.launchers
    if how == 3:
        launchers.loses_answers = not launchers.loses_answers
        simulation.tell(f"answers of launchers get lost: {launchers.loses_answers}")
    elif how == 2:
        launchers.processes_linger = not launchers.processes_linger
        simulation.tell(f"processes linger when they are to end: {launchers.processes_linger}")
    elif how == 4 and (pod := _pick(simulation, choices)):
        launchers.apart ^= {pod["metadata"]["uid"]}
        simulation.tell(f"{_name(pod)} is cut off from its peers' launchers, or no longer")
    elif pod := _pick(simulation, choices):
        launchers.cut_off ^= {pod["metadata"]["uid"]}
        simulation.tell(f"{_name(pod)} is cut off, or within reach again")


def what_launchers_were_told_comes_again(simulation: Simulation, choices: Choices) -> None:
    del choices
    simulation.launchers.deliver_late()
    simulation.tell("what launchers were told comes once more")


def launchers_run_out_of_patience(simulation: Simulation, choices: Choices) -> None:
    simulation.advance(choices.of((1.0, 61.0)))
    for pod in simulation.pods():
        if kubelet.is_running(pod) and starts_anew(pod):
            code = simulation.launchers.out_of_patience(pod)
            if code is not None:
                simulation.end_trainer(pod, code)
                simulation.tell(f"{_name(pod)} ends with {code}, for nobody has answered")


def a_trainer_takes_its_peers_along(simulation: Simulation, choices: Choices) -> None:
    if first := _pick_running(simulation, choices):
        code, pause = choices.of(_FAILURE_CODES), choices.of((0.0, 0.5, 2.0))
        simulation.end_trainer(first, code)
        simulation.tell(f"the trainer of {_name(first)} exits with {code}, its peers with 75")
        simulation.advance(pause)
        for pod in simulation.pods():
            if kubelet.is_running(pod):
                simulation.end_trainer(pod, 75, message="lost a peer")


def training_proceeds(simulation: Simulation, choices: Choices) -> None:
    """Whoever trains moves by some steps, and mostly the operator asks how far."""
    steps, save, asked = choices.of((10, 1)), choices.of((False, True)), choices.upto(3) < 3
    for pod in simulation.pods():
        if simulation.trains(pod) and not kubelet.is_deleting(pod):
            step = simulation.training.proceed(pod, steps=steps, save=save)
            simulation.invariants.truth_of(pod).move(simulation.clock.seconds)
            simulation.tell(f"{_name(pod)} comes to step {step}{', which is saved' * save}")
    if asked:
        _ask_for_progress(simulation)


def training_hangs(simulation: Simulation, choices: Choices) -> None:
    """Asked twice, the trainer tells of the same step."""
    _ask_for_progress(simulation)
    simulation.advance(choices.of((70.0, 25.0)))
    _ask_for_progress(simulation)


def _ask_for_progress(simulation: Simulation) -> None:
    if simulation.operator is not None:
        simulation.operator.ask_for_progress()
        simulation.operator.listen()
        simulation.tell("the operator asks for progress, and listens to the launchers")


def training_ends_well(simulation: Simulation, choices: Choices) -> None:
    del choices
    for pod in simulation.pods():
        if kubelet.is_running(pod):
            simulation.end_trainer(pod, 0, message="final loss 0.1")
    simulation.tell("all running trainers exit with 0")


def a_pod_is_evicted(simulation: Simulation, choices: Choices) -> None:
    pod = _pick(simulation, choices)
    if pod is None or not kubelet.node_of(pod):
        return
    how = choices.of(("Evicted", "EvictionByEvictionAPI", "PreemptionByScheduler", "NodeShutdown"))
    simulation.take_away(pod)
    if how in ("Evicted", "NodeShutdown"):
        code = choices.of((None, 0, 137))  # None: the kubelet has found no container any more
        pod = kubelet.targeted(pod, "TerminationByKubelet", simulation.clock.now())
        if code is not None and kubelet.is_running(pod):
            simulation.end_trainer(pod, code)
            pod = simulation.server.found_pod(simulation.key_of(pod))
        simulation.change(pod, kubelet.failed(pod, how))
    else:
        simulation.change(pod, kubelet.targeted(pod, how, simulation.clock.now()))
        simulation.server.end_pod(simulation.key_of(pod))
    simulation.tell(f"{_name(pod)} is disrupted: {how}")


def a_person_deletes_a_pod(simulation: Simulation, choices: Choices) -> None:
    pod = _pick(simulation, choices, live=False)
    if pod is None:
        return
    simulation.take_away(pod)
    if choices.upto(1):
        simulation.server.remove_pod(simulation.key_of(pod))
        simulation.tell(f"{_name(pod)} vanishes")
    else:
        simulation.server.end_pod(simulation.key_of(pod))
        simulation.tell(f"somebody deletes {_name(pod)}")


def finished_pods_are_collected(simulation: Simulation, choices: Choices) -> None:
    """As the pod garbage collector does when there are too many, or with a node that goes."""
    del choices
    for pod in simulation.pods(live=False):
        if kubelet.is_over(pod):
            simulation.server.remove_pod(simulation.key_of(pod))
    simulation.tell("finished pods are collected")


def terminating_pods_go(simulation: Simulation, choices: Choices) -> None:
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


def a_pod_cannot_start(simulation: Simulation, choices: Choices) -> None:
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
