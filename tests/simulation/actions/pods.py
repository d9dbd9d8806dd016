"""Events of trainers, launchers and their pods."""

from ddp_operator.job.membership.rank_order import is_due

from tests.simulation.actions.picks import name_of, pick, pick_running
from tests.simulation.checks.truth import EXITS, START_ERRORS, Exit, class_of
from tests.simulation.history import Choices
from tests.simulation.simulation import Simulation
from tests.simulation.world import kubelet
from tests.simulation.world.launchers import ANSWER_SECONDS, restarts_in_place
from tests.simulation.world.start_faults import Stage

_NODES = ("node-a", "node-b", "node-c")
_TOLD_BY_LAUNCHERS = tuple(exit_ for exit_ in EXITS if exit_.code != 64)
_OFTEN = (EXITS[0], EXITS[1], EXITS[2])


def pods_progress(simulation: Simulation, choices: Choices) -> None:
    """Start all pods as far as possible, or one pod one stage further. Gates are removed first."""
    all_the_way = choices.upto(2) < 2
    pods = simulation.pods()
    for pod in pods if all_the_way else [choices.of(pods)] if pods else []:
        if kubelet.is_deleting(pod) or kubelet.trainer_exit(pod):
            continue
        if kubelet.is_gated(pod):
            simulation.change(pod, kubelet.ungated(pod))
            continue
        nodes = () if kubelet.node_of(pod) else (choices.of(_NODES),)
        next_stage = Stage(min(kubelet.stage_of(pod) + 1, Stage.READY))
        most = Stage.READY if all_the_way else next_stage
        simulation.bring_further(pod, most=most, nodes=nodes)
    simulation.log(f"{'all pods are' if all_the_way else 'one pod is'} further")
    job = simulation.job()
    if job is not None and is_due(job) and simulation.operator is not None:
        simulation.operator.listen()


def a_trainer_exits(simulation: Simulation, choices: Choices) -> None:
    if pod := pick_running(simulation, choices):
        exit_, side_car_runs = choices.of((*_OFTEN, *EXITS, None)), choices.upto(7) == 7
        if exit_ is None:
            simulation.end_trainer(pod, 0, side_car_runs=side_car_runs)
        else:
            simulation.fail_trainer(pod, exit_, side_car_runs=side_car_runs)
        simulation.log(f"the trainer of {name_of(pod)} exits: {exit_ or 0}")
    else:
        pods_progress(simulation, choices)


def a_container_cannot_start(simulation: Simulation, choices: Choices) -> None:
    """Its runtime fails, or the image lacks its command."""
    made = [
        pod
        for pod in simulation.pods()
        if kubelet.node_of(pod) and not (kubelet.is_running(pod) or simulation.is_ending(pod))
    ]
    if made:
        pod = choices.of(made)
        errors = START_ERRORS[:1] if simulation.has_run(pod) else START_ERRORS
        exit_ = choices.of(errors)
        simulation.fail_trainer(pod, exit_)
        # Where others of its kind run before anybody looks, it is a node that lacks the command.
        simulation.invariants.truth_of(pod).faults.add("Infrastructure")
        simulation.log(f"{name_of(pod)} cannot start: {exit_.words}")


def processes_end_in_their_pod(simulation: Simulation, choices: Choices) -> None:
    """A launcher keeps its pod, and tells; mostly the operator hears of it."""
    running = [
        pod for pod in simulation.pods() if kubelet.is_running(pod) and restarts_in_place(pod)
    ]
    if not running:
        a_trainer_exits(simulation, choices)
        return
    pod, exit_ = choices.of(running), choices.of(_TOLD_BY_LAUNCHERS)._replace(reason="Error")
    if simulation.launchers.fail(pod, exit_.code, exit_.words):
        truth = simulation.invariants.truth_of(pod)
        truth.exit_code, truth.failed_as = exit_.code, class_of(exit_, pod)
        simulation.invariants.note_fault(pod, truth.failed_as)
        simulation.log(f"the processes of {name_of(pod)} end: {exit_}")
    if choices.upto(3) < 3 and simulation.operator is not None:
        simulation.operator.listen()
        simulation.log("the operator listens to the launchers")


def launchers_are_cut_off(simulation: Simulation, choices: Choices) -> None:
    """From the operator or from each other, for a while or for longer than anybody waits; or only
    their answers get lost.
    """
    how, launchers = choices.upto(5), simulation.launchers
    if how == 5:
        launchers.answer_seconds = choices.of((ANSWER_SECONDS, 1.0, 5.0, 1000.0))
        simulation.log(f"launchers answer after {launchers.answer_seconds:g} s")
    elif how == 3:
        launchers.loses_answers = not launchers.loses_answers
        simulation.log(f"answers of launchers get lost: {launchers.loses_answers}")
    elif how == 2:
        launchers.processes_linger = not launchers.processes_linger
        simulation.log(f"processes linger when they are to end: {launchers.processes_linger}")
    elif how == 4 and (pod := pick(simulation, choices)):
        launchers.apart ^= {pod["metadata"]["uid"]}
        simulation.log(f"{name_of(pod)} is cut off from its peers' launchers, or no longer")
    elif pod := pick(simulation, choices):
        launchers.cut_off ^= {pod["metadata"]["uid"]}
        simulation.log(f"{name_of(pod)} is cut off, or within reach again")


def late_orders_reach_launchers(simulation: Simulation, choices: Choices) -> None:
    del choices
    simulation.launchers.deliver_late()
    simulation.log("late orders reach launchers again")


def launchers_stop_waiting(simulation: Simulation, choices: Choices) -> None:
    simulation.advance(choices.of((1.0, 61.0)))
    for pod in simulation.pods():
        if kubelet.is_running(pod) and restarts_in_place(pod):
            simulation.end_after_waiting(pod)


def a_trainer_takes_its_peers_along(simulation: Simulation, choices: Choices) -> None:
    if first := pick_running(simulation, choices):
        exit_, pause = choices.of(EXITS), choices.of((0.0, 0.5, 2.0))
        simulation.fail_trainer(first, exit_)
        simulation.log(f"the trainer of {name_of(first)} exits: {exit_}; its peers with 75")
        simulation.advance(pause)
        for pod in simulation.pods():
            if kubelet.is_running(pod):
                simulation.fail_trainer(pod, Exit(75, "Error", "lost a peer", "Application"))


def training_proceeds(simulation: Simulation, choices: Choices) -> None:
    """Pods that train make some steps, and mostly the operator asks for progress."""
    steps, save, asked = choices.of((10, 1)), choices.of((False, True)), choices.upto(3) < 3
    for pod in simulation.pods():
        if simulation.trains(pod) and not kubelet.is_deleting(pod):
            step = simulation.training.proceed(pod, steps=steps, save=save)
            truth = simulation.invariants.truth_of(pod)
            truth.move(simulation.clock.seconds)
            if simulation.training.is_complete(pod) and truth.last_step_at is None:
                truth.last_step_at = simulation.clock.seconds
            simulation.log(f"{name_of(pod)} comes to step {step}{', which is saved' * save}")
    if asked:
        _ask_for_progress(simulation)


def checkpoints_are_wiped(simulation: Simulation, choices: Choices) -> None:
    """By a person, or by a script that begins another training."""
    if simulation.server.job is not None:
        simulation.training.wipe(simulation.server.job["metadata"]["uid"])
        for pod in simulation.pods(live=False):
            simulation.invariants.truth_of(pod).last_step_at = None
        simulation.log("the checkpoints are wiped, and training begins at step 0")
        if choices.upto(1):
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
        simulation.log("the operator asks for progress, and listens to the launchers")


def training_ends_well(simulation: Simulation, choices: Choices) -> None:
    del choices
    for pod in simulation.pods():
        if kubelet.is_running(pod):
            simulation.end_trainer(pod, 0, message="final loss 0.1")
    simulation.log("all running trainers exit with 0")
