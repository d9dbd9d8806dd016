"""The cluster that incidents happen to, and the table of their verdicts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.conftest import Victim, namespace, victim
from tests.cluster.cache import cache_dir, exclusive
from tests.incidents.scene import Incident
from tests.incidents.table import OUTCOMES, PAGE, ROWS, updated
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put incidents in a queue last: Kueue's webhook then judges all Jobs."""
    items.sort(key=_is_queued)


def _is_queued(item: pytest.Item) -> bool:
    called = getattr(item, "callspec", None)
    incident = called.params.get("incident") if called else None
    return isinstance(incident, Incident) and incident.queued


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--write-table`, for a machine that does nothing else: the table has seconds."""
    parser.addoption("--write-table", action="store_true", help=f"write the table to {PAGE}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the lines again, and write the table to the docs if `--write-table` is given."""
    rows, outcomes = config.stash.get(ROWS, []), config.stash.get(OUTCOMES, {})
    for row in rows:
        terminalreporter.write_line(row.text())
    for (column, name), cell in outcomes.items():
        terminalreporter.write_line(f"{column}: {name}: {cell}")
    if not config.getoption("--write-table"):
        return
    with exclusive(cache_dir("incidents") / "table.lock", waiting_for="another column"):
        before = PAGE.read_text()
        after = updated(before, rows, outcomes)
        PAGE.write_text(after)
    if after != before:
        terminalreporter.write_line(f"the table is written to {PAGE}")
