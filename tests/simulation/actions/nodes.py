"""Events of nodes and of the pods on them."""

from tests.simulation.actions.lasting import evict_by_taint, lose_node
from tests.simulation.history import Choices
from tests.simulation.simulation import Simulation
from tests.simulation.world import kubelet
from tests.simulation.world.nodes import BAD, LEAVING, UNREACHABLE, WELL, rebooted, reporting

_NODES = ("node-a", "node-b", "node-c")


def a_node_dies(simulation: Simulation, choices: Choices) -> None:
    """The control plane notices later: pods are evicted, or their objects go with the node."""
    node, how = choices.of(_NODES), choices.upto(2)
    if node in simulation.dead_nodes:
        return
    simulation.dead_nodes.add(node)
    simulation.log(f"{node} dies")
    if choices.upto(1):
        simulation.advance(choices.of((2.0, 50.0)))
    if how == 2:
        _collect_orphans(simulation, node)
        simulation.log(f"{node} is removed, and its pods with it")
        return
    lose_node(simulation, node)
    if how == 1:
        _leave_nobody(simulation, node)
        simulation.log(f"{node} is removed: its pods are evicted, tolerations or not")


def _leave_nobody(simulation: Simulation, node: str) -> None:
    for pod in simulation.pods(live=False):
        if kubelet.node_of(pod) == node and not kubelet.is_told_to_end(pod):
            evict_by_taint(simulation, pod)


def _collect_orphans(simulation: Simulation, node: str) -> None:
    """As the pod garbage collector does: the phase is the last that anybody hears of them, and
    their containers never ended.
    """
    text, now = "PodGC: node no longer exists", simulation.clock.now()
    for pod in simulation.pods(live=False):
        if kubelet.node_of(pod) != node:
            continue
        simulation.take_away(pod)
        if not kubelet.is_over(pod):
            targeted = kubelet.targeted(pod, "DeletionByPodGC", text, now)
            simulation.change(pod, kubelet.failed(targeted, ""))
        simulation.server.remove_pod(simulation.key_of(pod))


def dead_nodes_come_back(simulation: Simulation, choices: Choices) -> None:
    """After another start, which no container has survived, or with all that ran there."""
    if not simulation.dead_nodes:
        return
    has_started = choices.upto(1)
    for node in sorted(simulation.dead_nodes):
        manifest = reporting(simulation.server.node_manifests[node], WELL)
        simulation.server.put_node(rebooted(manifest) if has_started else manifest)
        for pod in simulation.pods(live=False):
            if kubelet.node_of(pod) == node and has_started:
                simulation.lose_containers(pod)
    simulation.log("dead nodes come back" + has_started * ", started again")
    simulation.dead_nodes.clear()


def a_node_says_something(simulation: Simulation, choices: Choices) -> None:
    """Report that a node is about to go, is broken, or is well; or start it again."""
    name = choices.of(_NODES)
    node = simulation.server.node_manifests[name]
    if name in simulation.dead_nodes:
        return
    whats = (*LEAVING, WELL, *BAD, WELL, "rebooted")
    what = choices.of(whats)
    changed = rebooted(reporting(node, WELL)) if what == "rebooted" else reporting(node, what)
    simulation.server.put_node(changed)
    simulation.log(f"{name} says: {what}")


def nobody_hears_of_any_node(simulation: Simulation, choices: Choices) -> None:
    """As after an outage of the control plane: all runs on, and the last heartbeats are old."""
    before = dict(simulation.server.node_manifests)
    for node in before.values():
        simulation.server.put_node(reporting(node, UNREACHABLE))
    simulation.log("nobody hears of any node")
    simulation.advance(choices.of((2.0, 20.0, 60.0)))
    for name, node in before.items():
        if name not in simulation.dead_nodes:
            simulation.server.put_node(node)
    simulation.log("the nodes are heard of again")


def pods_do_not_start(simulation: Simulation, choices: Choices) -> None:
    """On a node, one of them, or all of them: for a while, or for long."""
    what, fault = choices.of(tuple(simulation.possible_start_faults().items()))
    pods = simulation.pods()
    uid = choices.of(pods)["metadata"]["uid"] if pods else ""
    everywhere = fault.fault in ("registry", "spec")
    where = "" if everywhere else choices.of((choices.of(_NODES), uid, ""))
    seconds = choices.of((30.0, 100.0, 400.0, 1000.0))
    simulation.start_faults.put(where, fault, until=simulation.clock.seconds + seconds)
    simulation.log(f"pods ({where or 'all'}) meet this: {what}, for {seconds:g} s")
