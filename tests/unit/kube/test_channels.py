import asyncio
import contextlib

import pytest
from ddp_client.remote.channels import Ran, open_exec, open_port, run_in_pod
from ddp_operator.kube import ApiClient
from ddp_operator.kube.errors import AnswerTooLargeError
from ddp_operator.ports import (
    ForbiddenError,
    InvalidError,
    Key,
    NotFoundError,
    UnavailableError,
)

from tests.unit.kube.fake_api_server import FakeApiServer, Fault
from tests.unit.kube.fake_channels import FakePort, ProgramRun

POD = Key("ns", "job-0-0")
MiB = 1024 * 1024


async def ran(client: ApiClient, *command: str, limit: int = MiB, seconds: float = 30) -> Ran:
    return await run_in_pod(
        client, POD, "trainer", command, limit_bytes=limit, timeout_seconds=seconds
    )


async def says_hello(run: ProgramRun) -> int:
    await run.print(" ".join(run.command).encode())
    await run.print(b"careful", error=True)
    return 3


async def never_ends(_: ProgramRun) -> int:
    await asyncio.sleep(600)
    return 0


async def test_output_and_exit_code_are_returned(client: ApiClient, server: FakeApiServer) -> None:
    server.programs[POD.name] = says_hello
    assert await ran(client, "echo", "a b", "&c=d") == Ran(b"echo a b &c=d", b"careful", 3)
    [request] = server.requests
    assert request.query["container"] == "trainer"
    assert "stdin" not in request.query
    assert request.headers["Authorization"] == "Bearer first"


@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v5.channel.k8s.io"])
async def test_input_and_window_size_reach_the_program(
    client: ApiClient, server: FakeApiServer, protocol: str
) -> None:
    runs: list[ProgramRun] = []

    async def cat(run: ProgramRun) -> int:
        runs.append(run)
        async for typed in run.input():
            await run.print(typed)
            if typed == b"exit":
                return 0
        return 7

    server.programs[POD.name] = cat
    server.exec_protocols = (protocol,)
    async with open_exec(client, POD, "trainer", ["cat"], stdin=True, tty=True) as program:
        await program.resize(120, 40)
        await program.write(b"x" * 100_000)
        can_end = await program.end_input()
        if not can_end:
            await program.write(b"exit")
        printed = [piece async for _, piece in program.output()]
    assert can_end == (protocol == "v5.channel.k8s.io")
    assert b"".join(printed) == b"x" * 100_000 + (b"" if can_end else b"exit")
    assert program.exit_code == (7 if can_end else 0)
    assert runs[0].sizes == [(120, 40)]
    assert runs[0].tty


async def test_program_that_cannot_start_is_an_error(
    client: ApiClient, server: FakeApiServer
) -> None:
    async def missing(_: ProgramRun) -> int:
        return -1

    server.programs[POD.name] = missing
    with pytest.raises(InvalidError, match="no such executable"):
        await ran(client, "nothing")


async def test_broken_connection_is_an_error(client: ApiClient, server: FakeApiServer) -> None:
    async def broken(run: ProgramRun) -> int:
        await run.print(b"so far")
        await run.break_connection()
        return 0

    server.programs[POD.name] = broken
    with pytest.raises(UnavailableError, match="before the program ended"):
        await ran(client, "train")


async def test_output_over_the_limit_is_not_read(client: ApiClient, server: FakeApiServer) -> None:
    async def talks(run: ProgramRun) -> int:
        with contextlib.suppress(ConnectionError):
            for _ in range(10_000):
                await run.print(b"x" * 1000)
        return 0

    server.programs[POD.name] = talks
    with pytest.raises(AnswerTooLargeError, match="more than 5000 bytes"):
        await ran(client, "yes", limit=5000)


async def test_program_ends_at_its_timeout(client: ApiClient, server: FakeApiServer) -> None:
    server.programs[POD.name] = never_ends
    with pytest.raises(UnavailableError, match=r"job-0-0: sleep did not end within 0\.2 s"):
        await ran(client, "sleep", seconds=0.2)


async def test_refusal_has_the_servers_message(client: ApiClient, server: FakeApiServer) -> None:
    with pytest.raises(NotFoundError, match='pods "job-0-0" not found'):
        await ran(client, "ls")
    message = {"message": "container nobody is not valid for pod job-0-0"}
    server.faults = [Fault("GET", 400, body=message, times=2, path_part="/exec")]
    with pytest.raises(InvalidError, match="container nobody is not valid"):
        await ran(client, "ls")
    server.programs[POD.name] = says_hello  # a proxy without WebSockets
    server.faults = [Fault("GET", 400, body={"message": "Bad Request"}, path_part="/exec")]
    with pytest.raises(InvalidError, match="pods/job-0-0/exec: no connection, HTTP 400"):
        await ran(client, "ls")
    server.denied.add(("get", "pods/exec"))
    with pytest.raises(ForbiddenError, match="you cannot get resource pods/exec"):
        await ran(client, "ls")


async def test_server_without_the_subprotocol_is_an_error(
    client: ApiClient, server: FakeApiServer
) -> None:
    server.programs[POD.name] = says_hello
    server.exec_protocols = ("v9.channel.k8s.io",)
    with pytest.raises(UnavailableError, match="speaks none of"):
        await ran(client, "ls")


async def test_refused_credentials_are_renewed(client: ApiClient, server: FakeApiServer) -> None:
    server.programs[POD.name] = says_hello
    server.bearer_token = "second"
    with pytest.raises(ForbiddenError):  # the kubeconfig's token is the first one, and stays
        await ran(client, "ls")
    assert server.count("GET", "/exec") == 2


async def test_port_forwards_data_both_ways(client: ApiClient, server: FakeApiServer) -> None:
    server.ports[POD.name, 29501] = FakePort()
    async with open_port(client, POD, 29501) as port:
        await port.write(b"hello ")
        await port.write(b"good bye")
        assert b"".join([piece async for piece in port.received()]) == b"HELLO GOOD BYE"


async def test_port_without_a_listener_is_an_error(
    client: ApiClient, server: FakeApiServer
) -> None:
    server.ports[POD.name, 80] = FakePort(listens=False)
    async with open_port(client, POD, 80) as port:
        with pytest.raises(UnavailableError, match="connection refused"):
            [piece async for piece in port.received()]
