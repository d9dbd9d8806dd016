"""Choices of the pod that something happens to."""

from ddp_operator.ports import Manifest

from tests.simulation.history import Choices
from tests.simulation.simulation import Simulation
from tests.simulation.world import kubelet


def pick(simulation: Simulation, choices: Choices, *, live: bool = True) -> Manifest | None:
    """Return any pod, if there is one."""
    pods = simulation.pods(live=live)
    return choices.of(pods) if pods else None


def pick_running(simulation: Simulation, choices: Choices) -> Manifest | None:
    """Return a pod with a running trainer, if there is one."""
    running = [pod for pod in simulation.pods() if kubelet.is_running(pod)]
    return choices.of(running) if running else None


def name_of(pod: Manifest) -> str:
    """Return a pod's name."""
    name: str = pod["metadata"]["name"]
    return name
