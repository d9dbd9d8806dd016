"""The cluster that incidents happen to, and the table of their verdicts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.conftest import Victim, namespace, victim
from tests.incidents.table import ROWS, table, written
from tests.integration.queues.queue import CHIP, installed

__all__ = ["namespace", "victim"]


@pytest.fixture(scope="session")
def kueue(victim: Victim) -> Iterator[None]:
    """Chips on the node, and Kueue beside it, until all namespaces are gone."""
    victim.node.set_capacity(CHIP, 16)
    running = installed(victim.node)
    yield
    victim.environment.wait_until_namespaces_are_gone()  # Kueue releases their pods
    running.uninstall()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table; write it to the docs if every incident has its line."""
    rows = config.stash.get(ROWS, [])
    if rows:
        terminalreporter.write_line(table(rows))
    if written(rows):
        terminalreporter.write_line("docs/concepts/incidents.md has the same table")
