"""The examples in docstrings and on the page about the client."""

import asyncio
import doctest
import pkgutil
import re
import runpy
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import ddp_client
import pytest
from ddp_client import LocalClient, sdk
from ddp_client.remote.cluster import JOBS

from tests.unit.cli.jobs import training
from tests.unit.kube.fake_api_server import FakeApiServer

ROOT = Path(__file__).parents[3]


def examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in pkgutil.walk_packages(sdk.__path__, f"{sdk.__name__}."):
        loaded = import_module(module.name)
        given = {"asyncio": asyncio, "JobFailedError": sdk.JobFailedError}
        for found in finder.find(loaded, extraglobs=given):
            if found.examples:
                yield found


EXAMPLES = {example.name.removeprefix("ddp_client.sdk."): example for example in examples()}


def test_each_client_has_an_example() -> None:
    assert {"sync.Client", "sync.LocalClient", "sync.Job", "client.AsyncLocalClient"} <= set(
        EXAMPLES
    )


@pytest.mark.parametrize("name", EXAMPLES)
async def test_example_in_a_docstring(
    name: str,
    server: FakeApiServer,
    kubeconfig: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.resource_lists[JOBS.root] = [JOBS.plural]
    server.create("ddpjobs", training())
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    async with asyncio.timeout(120):
        result = await asyncio.to_thread(runner.run, EXAMPLES[name], out=said.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(said)


def test_program_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the page's first program on this machine instead of a cluster."""
    text = (ROOT / "docs" / "how-to" / "python.md").read_text()
    program, *_ = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    here = {"research": LocalClient(workdir=tmp_path)}
    monkeypatch.setattr(ddp_client, "Client", lambda namespace: here[namespace], raising=False)
    file = tmp_path / "page.py"
    file.write_text(program)
    client = runpy.run_path(str(file))["client"]
    client.close()
    out = capsys.readouterr().out
    assert "Succeeded 2/2\n" in out
    assert out.endswith("1 | step 2/3 of rank 1\n1 | step 3/3 of rank 1\n")
