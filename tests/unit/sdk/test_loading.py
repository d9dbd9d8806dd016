"""Imports that load the client, and imports that do not."""

import subprocess
import sys
from pathlib import Path

import ddp_operator
import pytest
from ddp_operator import sdk

OPERATOR = Path(ddp_operator.__file__).parents[1]


def loaded_by(statement: str) -> list[str]:
    """Return the client's modules that are loaded after a statement in a new Python."""
    program = (
        f"{statement}\nimport sys\nprint(*(m for m in sys.modules if 'ddp_operator.sdk' in m))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(OPERATOR)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.split()


def test_the_operator_does_not_load_it() -> None:
    assert loaded_by("import ddp_operator.process, ddp_operator.cli.__main__") == []


def test_who_asks_for_it_gets_it() -> None:
    assert "ddp_operator.sdk.sync" in loaded_by("from ddp_operator import Client")
    assert ddp_operator.Client is sdk.Client
    assert ddp_operator.AsyncLocalClient is sdk.AsyncLocalClient


def test_a_cluster_takes_nothing_that_linux_alone_has() -> None:
    assert "ddp_operator.sdk.backends.local" not in loaded_by("from ddp_operator import Client")


@pytest.mark.parametrize("name", ["Clinet", "_Client", "__wrapped__"])
def test_what_there_is_not(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(ddp_operator, name)
