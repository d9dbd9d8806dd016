import asyncio
from pathlib import Path

import pytest
from ddp_client.cli.__main__ import kubectl_completion, program
from ddp_client.cli.commands.completion import SHELLS, complete_for_kubectl

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import training
from tests.unit.kube.fake_api_server import FakeApiServer, Fault


def named(name: str, namespace: str = "research") -> dict[str, object]:
    made = training()
    return {**made, "metadata": {**made["metadata"], "name": name, "namespace": namespace}}


async def complete(kubeconfig: Path, *words: str) -> list[str]:
    given = ["--kubeconfig", str(kubeconfig), *words]
    # The program runs its own event loop.
    *found, directive = await asyncio.to_thread(complete_for_kubectl, program, given)
    assert directive == ":4"
    return found


@pytest.mark.parametrize("shell", SHELLS)
async def test_completion_script_of_each_shell(ddp: Ddp, shell: str) -> None:
    result = await ddp("completion", shell)
    assert result.exit_code == 0
    assert f"_DDP_COMPLETE={shell}_complete" in result.stdout


async def test_commands_and_options(kubeconfig: Path) -> None:
    found = await complete(kubeconfig, "re")
    assert [line.split("\t")[0] for line in found] == ["report", "restart", "resume"]
    assert any(line.startswith("--since\t") for line in await complete(kubeconfig, "logs", "--si"))
    assert [
        line.split("\t")[0] for line in await complete(kubeconfig, "wait", "x", "--for", "su")
    ] == ["succeeded", "suspended"]


async def test_jobs_of_the_namespace(server: FakeApiServer, kubeconfig: Path) -> None:
    for name, namespace in (("resnet", "research"), ("rest", "research"), ("red", "other")):
        server.create("ddpjobs", named(name, namespace))
    assert await complete(kubeconfig, "status", "res") == ["resnet", "rest"]
    assert await complete(kubeconfig, "status", "-n", "other", "re") == ["red"]
    assert await complete(kubeconfig, "-n", "other", "logs", "") == ["red"]
    assert {request.query["limit"] for request in server.requests} == {"250"}
    assert "PartialObjectMetadataList" in server.requests[0].headers["Accept"]


def test_kubectl_completion_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl_complete-ddp", "conv"])
    kubectl_completion()
    assert capsys.readouterr().out.startswith("convert\t")


@pytest.mark.parametrize("status", [403, 500, 404])
async def test_error_of_the_cluster_completes_nothing(
    server: FakeApiServer, kubeconfig: Path, status: int
) -> None:
    server.faults = [Fault("GET", status, body={}, times=9)]
    assert await complete(kubeconfig, "status", "") == []
    assert await complete(kubeconfig / "missing", "status", "") == []
