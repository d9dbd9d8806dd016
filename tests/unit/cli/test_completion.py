import asyncio
from pathlib import Path

import click
import pytest
from ddp_client.cli.__main__ import kubectl_completion, program
from ddp_client.cli.commands.completion import SHELLS, complete_for_kubectl
from ddp_client.cli.group import OF_A_JOB

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import training
from tests.unit.kube.fake_api_server import FakeApiServer, Fault


def named(name: str, namespace: str = "research") -> dict[str, object]:
    made = training()
    return {**made, "metadata": {**made["metadata"], "name": name, "namespace": namespace}}


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder with programs; without kubectl."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


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
    assert [line.split("\t")[0] for line in found] == ["report", "restart", "result", "resume"]
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


_KUBECTL = """#!/bin/sh
echo "$@" > "$0.called"
printf '%s\\n' 'resnet   Running   4/4' 'rest   Failed' 'red' '../x' 'No resources found'
exit {code}
"""


def add_kubectl(programs: Path, code: int = 0) -> None:
    kubectl = programs / "kubectl"
    kubectl.write_text(_KUBECTL.format(code=code))
    kubectl.chmod(0o755)


@pytest.mark.parametrize("code", [0, 1])
async def test_kubectl_on_the_path_lists_the_jobs(
    programs: Path, server: FakeApiServer, kubeconfig: Path, code: int
) -> None:
    add_kubectl(programs, code)
    assert await complete(kubeconfig, "stop", "-n", "other", "re") == ["resnet", "rest", "red"]
    called = (programs / "kubectl.called").read_text()
    assert called == (
        f"get ddpjobs.ddp-operator.io --no-headers --kubeconfig={kubeconfig} --namespace=other\n"
    )
    assert server.requests == []


def test_each_command_that_completes_a_job_is_listed(programs: Path) -> None:
    add_kubectl(programs)

    def completes_a_job(command: click.Command) -> bool:
        context = click.Context(command)
        arguments = [param for param in command.params if isinstance(param, click.Argument)]
        return any(
            item.value == "resnet" for a in arguments for item in a.shell_complete(context, "")
        )

    own = {name for name, command in program.commands.items() if completes_a_job(command)}
    assert own == OF_A_JOB


async def test_options_after_a_job_are_the_commands(kubeconfig: Path) -> None:
    found = await complete(kubeconfig, "status", "resnet", "--w")
    assert [line.split("\t")[0] for line in found] == ["--watch"]
    assert await complete(kubeconfig, "report", "--output", "x", "resnet", "--met") != []


@pytest.mark.parametrize("status", [403, 500, 404])
async def test_error_of_the_cluster_completes_nothing(
    server: FakeApiServer, kubeconfig: Path, status: int
) -> None:
    server.faults = [Fault("GET", status, body={}, times=9)]
    assert await complete(kubeconfig, "status", "") == []
    assert await complete(kubeconfig / "missing", "status", "") == []
