"""Replica groups of torchft as jobs of this machine, with torchft's own lighthouse.

By hand: torchft is in no requirements file. Install it into a folder and name that in PYTHONPATH.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.local.command import Command, kill_rank, running
from tests.ports import free_port

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        find_spec("torchft") is None,
        reason="torchft is not installed: pip install --no-deps --target FOLDER torchft==0.2.0 "
        "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http, and add FOLDER to PYTHONPATH",
    ),
]

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "torchft.yaml"
LIGHTHOUSE = "from torchft._torchft import lighthouse_main; lighthouse_main()"


@contextmanager
def lighthouse(folder: Path) -> Iterator[str]:
    """Yield the address of a lighthouse with the example's options."""
    [deployment] = (one for one in documents() if one["kind"] == "Deployment")
    _, *options = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    port = free_port()
    script = folder / "lighthouse.py"  # it reads its options after the name of a script
    script.write_text(LIGHTHOUSE)
    with (folder / "lighthouse.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), f"--bind=[::]:{port}", *options],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"http://localhost:{port}"
    finally:
        process.kill()
        process.wait()


def documents() -> list[dict[str, Any]]:
    return [*yaml.safe_load_all(EXAMPLE.read_text())]


def group_files(folder: Path, address: str, **variables: str) -> list[Path]:
    """Write a file for each group: packages are here, and the lighthouse has another address."""
    values = {"TORCHFT_LIGHTHOUSE": address, **variables}
    files = []
    [script] = (one for one in documents() if one["kind"] == "ConfigMap")
    for job in (one for one in documents() if one["kind"] == "DDPJob"):
        pod = job["spec"]["template"]["spec"]
        del pod["initContainers"]
        for variable in pod["containers"][0]["env"]:
            variable["value"] = values.get(variable["name"], variable["value"])
        files.append(folder / f"{job['metadata']['name']}.yaml")
        files[-1].write_text(yaml.safe_dump_all([job, script]))
    return files


async def until_next(command: Command, text: str) -> str:
    """Read until `text` has been printed again; return what was printed meanwhile."""
    before, command.output = command.output, ""
    await command.read_until(text)
    now = command.output
    command.output = before + now
    return now


def steps(output: str) -> list[int]:
    return [int(step) for step in re.findall(r"step (\d+)/", output)]


async def test_killed_group_rejoins_while_the_other_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUST_LOG", "error")  # while nobody reads a group's output, it has to fit
    with lighthouse(tmp_path) as address:
        first_file, second_file = group_files(tmp_path, address, STEPS="100000")
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(running(first_file, tmp_path / "0"))
            second = await stack.enter_async_context(running(second_file, tmp_path / "1"))
            for group in (first, second):
                await group.read_until("of 2 groups")
            kill_rank(tmp_path / "1", 1)
            alone = steps(await until_next(first, "of 1 groups"))[-1]
            await until_next(first, "of 2 groups")
            await second.read_until("generation 1: node rank 0 of 1")
            resumed = steps(await until_next(second, "of 2 groups"))[0]
    assert steps(first.output) == sorted(steps(first.output)), "the other group never goes back"
    assert "Restarting" not in first.output
    assert "all processes restart in place (restart 1 of 100)" in second.output
    assert resumed >= alone > 1, "the killed group gets the other's state"
