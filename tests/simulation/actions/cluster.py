"""Events that concern time, the operator, and its way to the API server and to pods."""

from dataclasses import replace

from tests.simulation.actions.lasting import refuse_beyond
from tests.simulation.history import Choices
from tests.simulation.simulation import Simulation
from tests.simulation.world import kubelet
from tests.simulation.world import refusals as answers
from tests.simulation.world.admission import MUTATIONS
from tests.simulation.world.refusals import CREATIONS, WRITES, Refusal

_REFUSED_SECONDS = (5.0, 30.0, 100.0, 400.0)


def time_passes(simulation: Simulation, choices: Choices) -> None:
    seconds = choices.of((0.0, 2.0, 10.0, 60.0, 400.0))
    simulation.advance(seconds)
    if seconds:
        simulation.log(f"{seconds:g} s have passed")


def the_operators_clock_jumps(simulation: Simulation, choices: Choices) -> None:
    skew = choices.of((0.0, 2.0, -2.0, 30.0, -5.0, 700.0))
    simulation.clock.operator_skew_seconds = skew
    simulation.invariants.clock_is_right = False
    simulation.log(f"the operator's clock is {skew:g} s ahead")


def the_operator_crashes(simulation: Simulation, choices: Choices) -> None:
    """Crash now, or at one of its next writes, before or after that takes effect."""
    writes = choices.upto(6)
    simulation.down_seconds = choices.of((0.0, 1.0, 20.0))
    if writes == 0:
        simulation.kill_operator()
        return
    simulation.requests.writes_until_crash = writes - 1
    simulation.requests.crash_after_effect = bool(choices.upto(1))
    when = "after" if simulation.requests.crash_after_effect else "before"
    simulation.log(f"the operator is about to crash {when} its write number {writes}")


_LOST = answers.network("timeout")
_ANSWERS: tuple[tuple[str, Refusal], ...] = (
    ("a server error", Refusal(answers.webhook_down)),
    ("409", Refusal(answers.conflict)),
    ("429", Refusal(answers.too_many)),
    ("no answer, although it was done", Refusal(_LOST, done=True, seconds=30)),
    ("no answer", Refusal(_LOST, seconds=30)),
    ("time", Refusal(None, seconds=6)),
    ("403 of a webhook", Refusal(answers.webhook_denies(403))),
    ("400 of a webhook", Refusal(answers.webhook_denies(400))),
    ("422 of a webhook", Refusal(answers.webhook_denies(422))),
    ("a LimitRange", Refusal(answers.over_limit_range)),
    ("a webhook that takes its time", Refusal(answers.over_time, seconds=30)),
    ("no descriptors", Refusal(answers.out_of_descriptors)),
)
_REQUESTS = (WRITES, CREATIONS, ("create_pod",), *((one,) for one in WRITES))


def requests_fail(simulation: Simulation, choices: Choices) -> None:
    """Some kinds, for a while or a few times."""
    what, refusal = choices.of(_ANSWERS)
    requests = choices.of(_REQUESTS)
    if choices.upto(1):
        skip, times = choices.upto(2), 1 + choices.upto(3)
        refusal = replace(refusal, requests=requests, skip=skip, times=times)
        how_long = f"{times} times, after {skip} others"
    else:
        seconds = choices.of(_REFUSED_SECONDS)
        refusal = replace(refusal, requests=requests, until=simulation.clock.seconds + seconds)
        how_long = f"for {seconds:g} s"
    simulation.requests.refusals.add(refusal)
    simulation.log(f"{', '.join(requests)} meet {what} {how_long}")


def quota_is_used_up(simulation: Simulation, choices: Choices) -> None:
    seconds, pods = choices.of(_REFUSED_SECONDS), choices.upto(3)
    refuse_beyond(simulation, pods, simulation.clock.seconds + seconds)
    simulation.log(f"there is quota for {pods} pods, for {seconds:g} s")


def webhooks_change_pods(simulation: Simulation, choices: Choices) -> None:
    """Admission changes pods that are created from now on, or no longer."""
    what, simulation.server.mutate = choices.of(MUTATIONS)
    simulation.log(f"webhooks give pods {what}")


def scheduling_gates_are_removed(simulation: Simulation, choices: Choices) -> None:
    """Their owner has chosen nodes for the pods."""
    del choices
    for pod in simulation.pods():
        if kubelet.is_gated(pod):
            simulation.change(pod, kubelet.ungated(pod))
    simulation.log("scheduling gates are removed")


def other_tenants_come_and_go(simulation: Simulation, choices: Choices) -> None:
    """Their pods take all places that are free on a node or on all nodes, or leave."""
    names = tuple(simulation.server.node_manifests)
    leave, where = choices.of((False, True)), choices.of((names, *((name,) for name in names)))
    for name in where:
        if leave:
            simulation.scheduler.tenants.leave(name, simulation.clock.seconds)
        else:
            simulation.fill(name)
    verb = "leave" if leave else "take all that is free on"
    simulation.log(f"pods of other tenants {verb} {', '.join(where)}")


def a_network_policy_cuts_off_the_operator(simulation: Simulation, choices: Choices) -> None:
    """From all pods, though not from the API server; or it is removed again."""
    launchers = simulation.launchers
    is_lost = launchers.all_cut_off_since is not None
    launchers.all_cut_off_since = None if is_lost else simulation.clock.seconds
    simulation.log(f"the operator {'reaches pods again' if is_lost else 'reaches no pod'}")
    simulation.advance(choices.of((0.0, 40.0, 200.0)))


def the_namespace_goes_away(simulation: Simulation, choices: Choices) -> None:
    """Nothing can be created any more; what there is goes, the job first or last."""
    seconds = choices.of((10.0, 60.0))
    until = simulation.clock.seconds + seconds
    simulation.requests.refusals.add(Refusal(answers.going_away, CREATIONS, until=until))
    simulation.server.secrets.clear()
    job_first = choices.upto(1)
    if job_first and simulation.server.job is not None:
        simulation.server.remove_job()
    for pod in simulation.pods(live=False):
        simulation.take_away(pod)
        simulation.server.end_pod(simulation.key_of(pod))
    simulation.log(f"the namespace is going away, for {seconds:g} s")
    simulation.advance(seconds / 2)
    if simulation.server.job is not None:
        simulation.server.remove_job()


def a_watch_has_trouble(simulation: Simulation, choices: Choices) -> None:
    operator = simulation.operator
    if operator is None:
        return
    name = choices.of(("pods", "jobs"))
    watch = operator.pods if name == "pods" else operator.jobs
    kind, seconds = choices.of(("stall", "lose", "repeat")), choices.of((2.0, 10.0, 45.0))
    getattr(watch, kind)(seconds)
    simulation.log(f"the watch of {name}: {kind} for {seconds:g} s")
