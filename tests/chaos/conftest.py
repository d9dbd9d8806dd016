"""A cluster in which each process may be killed: the bare node, with the operator in it."""

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.chaos.journal import Journal
from tests.cluster import ClusterUnavailableError
from tests.cluster.node import Node
from tests.e2e import environment as environments
from tests.e2e.environment import OPERATOR_NAMESPACE, Environment
from tests.e2e.jobs import Job, dump
from tests.e2e.kubectl import Kubectl
from tests.skipping import skip_or_fail

_JOURNALS = pytest.StashKey[list[Journal]]()


@dataclass(frozen=True)
class Victim:
    """The node and the environment that chaos disturbs."""

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
def seed() -> int:
    """Anything, unless CHAOS_SEED says what."""
    return int(os.environ.get("CHAOS_SEED") or random.randrange(10**6))


@pytest.fixture
def journal(request: pytest.FixtureRequest, seed: int) -> Journal:
    """The disturbances in order; their summary is printed at the end of the run."""
    made = Journal(seed)
    request.config.stash.setdefault(_JOURNALS, []).append(made)
    return made


@contextmanager
def explained(journal: Journal, environment: Environment, kubectl: Kubectl) -> Iterator[None]:
    """Print what was done, and after a failure what the cluster looks like."""
    print(f"chaos seed {journal.seed}")
    try:
        yield
    except BaseException:
        print(dump(environment.kubectl, [kubectl.namespace], OPERATOR_NAMESPACE))
        raise
    finally:
        print(journal.text())


def wait_until_all_succeed(jobs: Sequence[Job], *, within_seconds: float) -> None:
    """Wait for the success of all jobs, with one deadline."""
    deadline = time.monotonic() + within_seconds
    for job in jobs:
        job.wait_until("Succeeded", deadline_seconds=max(deadline - time.monotonic(), 1.0))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how much was done: a chaos test that did nothing would pass too."""
    for journal in config.stash.get(_JOURNALS, []):
        terminalreporter.write_line(f"chaos: {journal.summary()}")
