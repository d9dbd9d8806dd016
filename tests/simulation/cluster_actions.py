"""What happens to time, to nodes, to the operator, and on its way to the API server."""

from dataclasses import replace
from functools import partial

from ddp_operator.ports import ConflictError, ForbiddenError, InvalidError, UnavailableError

from tests.simulation import kubelet
from tests.simulation.cluster import Fault
from tests.simulation.history import Choices
from tests.simulation.simulation import Simulation

_REFUSED_SECONDS = (5.0, 30.0, 100.0)


def time_passes(simulation: Simulation, choices: Choices) -> None:
    seconds = choices.of((0.0, 2.0, 10.0, 60.0, 400.0))
    simulation.advance(seconds)
    if seconds:
        simulation.tell(f"{seconds:g} s have passed")


def the_operators_clock_jumps(simulation: Simulation, choices: Choices) -> None:
    skew = choices.of((0.0, 2.0, -2.0, 30.0, -5.0, 700.0))
    simulation.clock.operator_skew_seconds = skew
    simulation.invariants.clock_is_right = False
    simulation.tell(f"the operator's clock is {skew:g} s ahead")


def a_node_dies(simulation: Simulation, choices: Choices) -> None:
    """Its pods are told to go, and nobody is there to tell that they did."""
    node = choices.of(("node-a", "node-b", "node-c"))
    simulation.dead_nodes.add(node)
    for pod in simulation.pods(live=False):
        if kubelet.node_of(pod) == node and not kubelet.is_over(pod):
            simulation.take_away(pod)
            simulation.server.end_pod(simulation.key_of(pod))
    simulation.tell(f"{node} dies")


def dead_nodes_come_back(simulation: Simulation, choices: Choices) -> None:
    del choices
    if simulation.dead_nodes:
        simulation.tell("dead nodes come back")
        simulation.dead_nodes.clear()


def a_node_says_something(simulation: Simulation, choices: Choices) -> None:
    """That it is about to go, or broken, or that all is well; or it is started anew."""
    node = simulation.server.nodes[choices.of(("node-a", "node-b", "node-c"))]
    what = choices.of(("leaving", "well", "bad", "started anew"))
    leaving, bad = "a taint" * (what == "leaving"), "a condition" * (what == "bad")
    boot_id = node.boot_id + "+" * (what == "started anew")
    simulation.server.put_node(replace(node, leaving=leaving, bad=bad, boot_id=boot_id))
    simulation.tell(f"{node.name} is {what}")


def the_operator_crashes(simulation: Simulation, choices: Choices) -> None:
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


def writes_fail(simulation: Simulation, choices: Choices) -> None:
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


def quota_is_used_up(simulation: Simulation, choices: Choices) -> None:
    seconds = choices.of(_REFUSED_SECONDS)
    exceeded = partial(ForbiddenError, "exceeded quota: pods", status=403)
    simulation.server.refuse("create_pod", exceeded, seconds=seconds)
    simulation.tell(f"quota is used up for {seconds:g} s")


def a_webhook_denies(simulation: Simulation, choices: Choices) -> None:
    requests = ("create_pod", "delete_pod", "create_service", "patch_pod_labels", "apply PodGroup")
    request = choices.of(requests)
    status, seconds = choices.of((403, 400, 422)), choices.of(_REFUSED_SECONDS)
    kind = ForbiddenError if status == 403 else InvalidError
    denial = partial(kind, 'admission webhook "policy.example.com" denied it', status=status)
    simulation.server.refuse(request, denial, seconds=seconds)
    simulation.tell(f"a webhook answers {request} with {status} for {seconds:g} s")


def a_watch_has_trouble(simulation: Simulation, choices: Choices) -> None:
    operator = simulation.operator
    if operator is None:
        return
    name = choices.of(("pods", "jobs"))
    watch = operator.pods if name == "pods" else operator.jobs
    kind, seconds = choices.of(("stall", "lose", "repeat")), choices.of((2.0, 10.0, 45.0))
    getattr(watch, kind)(seconds)
    simulation.tell(f"the watch of {name}: {kind} for {seconds:g} s")
