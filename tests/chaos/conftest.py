"""A cluster whose every process may be killed: the bare node, with the operator in it."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.chaos.journal import Journal
from tests.cluster import ClusterUnavailableError
from tests.cluster.node import Node
from tests.e2e import environment as environments
from tests.e2e.environment import Environment
from tests.e2e.kubectl import Kubectl
from tests.skipping import skip_or_fail

_JOURNAL = pytest.StashKey[Journal]()


@dataclass(frozen=True)
class Victim:
    """What is to be disturbed."""

    environment: Environment
    node: Node


@pytest.fixture(scope="session")
def victim() -> Iterator[Victim]:
    """The node and what is installed on it."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(environments.node_with_images())
        except ClusterUnavailableError as reason:
            skip_or_fail("TEST CLUSTER TO DISTURB", reason)
        environment = Environment(Kubectl(running.kubeconfig))
        stack.enter_context(environment.installed())
        yield Victim(environment, running)


@pytest.fixture
def namespace(victim: Victim) -> Iterator[Kubectl]:
    """kubectl in a fresh namespace."""
    kubectl = victim.environment.new_namespace()
    yield kubectl
    victim.environment.delete_namespace(kubectl)


@pytest.fixture
def journal(request: pytest.FixtureRequest, seed: int) -> Journal:
    """What is done, in order; its summary is printed at the end of the run."""
    made = Journal(seed)
    request.config.stash[_JOURNAL] = made
    return made


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how much was done: a chaos test that did nothing would pass too."""
    if journal := config.stash.get(_JOURNAL, None):
        terminalreporter.write_line(f"chaos: {journal.summary()}")
