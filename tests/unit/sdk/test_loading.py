"""Imports that load the client and slow libraries, and imports that do not."""

import subprocess
import sys
from pathlib import Path

import ddp_client
import ddp_operator
import pytest
from ddp_client import sdk

PATHS = ":".join(str(Path(str(each.__file__)).parents[1]) for each in (ddp_operator, ddp_client))


def test_client_and_rules_of_tokens_are_loaded_on_demand() -> None:
    listed = "print(*(m for m in sys.modules if 'ddp_client.sdk' in m or m == 'detect_secrets'))"
    program = (
        f"import sys, ddp_operator.process.run, ddp_client.cli.__main__\n{listed}\n"
        f"from ddp_client import Client\n{listed}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        check=True,
    )
    by_operator, by_client = (line.split() for line in ended.stdout.split("\n")[:2])
    assert by_operator == []
    assert "ddp_client.sdk.sync" in by_client
    assert "ddp_client.sdk.backends.local" not in by_client, "it needs Linux"
    assert ddp_client.Client is sdk.Client
    assert ddp_client.AsyncLocalClient is sdk.AsyncLocalClient


@pytest.mark.parametrize("name", ["Clinet", "_Client", "__wrapped__"])
def test_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(ddp_client, name)
