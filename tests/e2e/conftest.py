"""A cluster with the operator in it for the session, and namespaces for tests.

Everything is real: the images are built from this checkout, the operator runs in a pod from
`manifests/install`, and kubectl does what a user would do with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack

import pytest

from tests.cluster import Cluster, ClusterUnavailableError
from tests.e2e import environment as environments
from tests.e2e.environment import OPERATOR_NAMESPACE, Environment
from tests.e2e.jobs import dump
from tests.e2e.kubectl import Kubectl
from tests.skipping import skip_or_fail

_ENVIRONMENT = pytest.StashKey[Environment]()
_UNAVAILABLE = pytest.StashKey[str]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.cluster)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure what a person would ask kubectl about it."""
    report = yield
    environment = item.session.stash.get(_ENVIRONMENT, None)
    if report.failed and environment is not None:
        try:
            text = dump(environment.kubectl, environment.namespaces[-2:], OPERATOR_NAMESPACE)
        except Exception as error:
            text = f"cannot be had: {error!r}"
        report.sections.append(("state of the cluster", text))
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say in one line what the many skipped tests have in common."""
    if reason := config.stash.get(_UNAVAILABLE, None):
        line = f"END-TO-END TESTS DID NOT RUN: no test cluster on this machine: {reason}"
        terminalreporter.write_line(line, red=True, bold=True)


@pytest.fixture(scope="session")
def running(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster with today's images."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(environments.cluster_with_images())
        except ClusterUnavailableError as reason:
            request.config.stash[_UNAVAILABLE] = str(reason)
            skip_or_fail("TEST CLUSTER", reason)
        yield found


@pytest.fixture(scope="session")
def environment(request: pytest.FixtureRequest, running: Cluster) -> Iterator[Environment]:
    """The same with the operator, ready."""
    made = Environment(Kubectl(running.kubeconfig))
    request.session.stash[_ENVIRONMENT] = made
    with made.installed():
        yield made


@pytest.fixture(scope="module")
def shared(environment: Environment) -> Iterator[Kubectl]:
    """kubectl in a namespace for all tests of a module. Their jobs run side by side."""
    kubectl = environment.new_namespace()
    yield kubectl
    environment.delete_namespace(kubectl)


@pytest.fixture
def kubectl(environment: Environment) -> Iterator[Kubectl]:
    """kubectl in a fresh namespace."""
    kubectl = environment.new_namespace()
    yield kubectl
    environment.delete_namespace(kubectl)


@pytest.fixture
def claim(environment: Environment, kubectl: Kubectl) -> Callable[[str], str]:
    """Makes a claim for checkpoints in the test's namespace; returns its name."""
    return lambda name: environment.make_claim(kubectl, name)


@pytest.fixture(autouse=True)
def _operator_does_not_crash(environment: Environment) -> Iterator[None]:
    """Fails the test after which a crash is seen, and no other."""
    yield
    known = environment.known_crashes
    found = environment.known_crashes = environments.crashes(environment.kubectl)
    new = {pod: end for pod, end in found.items() if known.get(pod) != end}
    assert not new, "the operator has crashed"
