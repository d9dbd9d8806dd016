import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ddp
from tests.unit.cli.test_stacks import pods
from tests.unit.job.builders import NAME
from tests.unit.kube.fake_api_server import FakeApiServer
from tests.unit.kube.fake_channels import FakePort, ProgramRun

__all__ = ["pods"]


async def test_exec_runs_in_the_pod_of_a_rank(
    ddp: Ddp, server: FakeApiServer, pods: list[str]
) -> None:
    async def program(run: ProgramRun) -> int:
        await run.print(" ".join(run.command).encode() + b"\n")
        await run.print(b"careful\n", error=True)
        return 17

    server.programs[pods[1]] = program
    result = await ddp("exec", NAME, "--rank", "1", "--", "ls", "-l", "--all")
    assert (result.exit_code, result.stdout, result.stderr) == (17, "ls -l --all\n", "careful\n")
    assert server.requests[-1].query["container"] == "trainer"


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--rank", "2", "--", "ls"), 1, "the job has ranks 0 to 1 only"),
        (("--", "ls"), 1, 'pods "digits-0-0" not found'),
        ((), 2, "Missing argument"),
        (("-t", "--", "ls"), 2, "standard input and output are no terminal"),
    ],
)
async def test_invalid_exec_is_refused(
    ddp: Ddp, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = await ddp("exec", NAME, *arguments)
    assert result.exit_code == code
    assert said in result.stderr


async def test_exec_in_a_missing_pod_is_refused(
    ddp: Ddp, server: FakeApiServer, pods: list[str]
) -> None:
    server.delete("pods", "research", pods[0])
    result = await ddp("exec", NAME, "--", "ls")
    assert result.exit_code == 1
    said = "the pod of rank 0 is not running: `kubectl ddp status digits` shows all pods"
    assert said in result.stderr


@pytest.fixture
async def forwarding(
    server: FakeApiServer, pods: list[str], kubeconfig: Path
) -> AsyncIterator[int]:
    """A local port that is forwarded to port 28737 of rank 1's pod."""
    server.ports[pods[1], 28737] = FakePort()
    server.resource_lists["/apis/ddp-operator.io/v1alpha1"] = ["ddpjobs"]
    # A separate process, because only a signal ends it.
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ddp_client.cli", "--kubeconfig", str(kubeconfig)),
        *("port-forward", NAME, "--rank", "1", ":28737"),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ,
    )
    assert program.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = (await program.stdout.readline()).decode()
        match = re.fullmatch(r"127\.0\.0\.1:(\d+) -> port 28737 of rank 1's pod\n", line)
        assert match, line
        yield int(match[1])
    finally:
        program.terminate()
        await program.communicate()


async def ask(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


async def test_connections_are_forwarded_to_the_pod(
    server: FakeApiServer, pods: list[str], forwarding: int
) -> None:
    assert await ask(forwarding, b"good bye") == b"GOOD BYE"
    answers = await asyncio.gather(*(ask(forwarding, b"%d bye" % n) for n in range(40)))
    assert answers == [b"%d BYE" % n for n in range(40)]
    # A failed connection ends alone; the next one reaches the new pod.
    del server.ports[pods[1], 28737]
    assert await ask(forwarding, b"bye") == b""
    server.ports[pods[1], 28737] = FakePort()
    assert await ask(forwarding, b"bye") == b"BYE"


@pytest.mark.parametrize("ports", ["http", "1:2:3", "70000:80", "80:0"])
async def test_invalid_port_is_refused(ddp: Ddp, ports: str) -> None:
    result = await ddp("port-forward", NAME, ports)
    assert result.exit_code == 2
    assert "use LOCAL:REMOTE" in result.stderr
