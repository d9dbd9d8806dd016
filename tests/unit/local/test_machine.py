"""Things that the pods of one machine share: ports, GPUs, a directory."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_client.local.machine.gpus import GpuPool, gpus_of, visible_gpus
from ddp_client.local.machine.localhost import Crossing, crossings
from ddp_client.local.machine.loopback import ADDRESS, LoopbackAddresses, LoopbackPorts
from ddp_client.local.machine.workdir import Workdir, WorkdirInUseError
from ddp_operator.ports import Key

JOB, OTHER = Key("default", "a"), Key("default", "b")


def test_an_attempt_keeps_its_port_and_shares_it_with_no_other() -> None:
    ports = LoopbackPorts()
    first = ports.rendezvous(JOB, attempt="0")
    assert ports.rendezvous(JOB, attempt="0") == first
    chosen = {first, ports.rendezvous(JOB, attempt="1"), ports.rendezvous(OTHER, attempt="0")}
    assert len(chosen) == 3


def test_host_name_keeps_its_own_address() -> None:
    addresses = LoopbackAddresses()
    first = addresses.of(JOB, "a-0-0")
    assert (first, addresses.of(JOB, "a-0-1")) == ("127.0.0.2", "127.0.0.3")
    assert addresses.of(JOB, "a-0-0") == first != addresses.of(OTHER, "a-0-0")


_SERVER = """
import socket
server = socket.create_server(("{address}", 0))
print(server.getsockname()[1], flush=True)
server.accept()[0].recv(1)
"""
_CLIENT = """
import socket, sys
client = socket.create_connection(("{address}", int(sys.argv[1])))
print(flush=True)
client.recv(1)
"""


@pytest.mark.parametrize(
    ("listens", "connects", "is_seen"),
    [
        ("", "127.0.0.1", True),
        ("", "localhost", True),
        ("", "127.0.0.2", False),
        ("127.0.0.1", "127.0.0.1", False),  # as gloo
    ],
)
def test_pod_that_reaches_another_at_localhost_is_found(
    listens: str, connects: str, is_seen: bool
) -> None:
    with (
        _python(_SERVER.format(address=listens)) as server,
        _python(_CLIENT.format(address=connects), port := _line(server)) as client,
    ):
        _line(client)
        try:
            found = crossings({"a": server.pid, "b": client.pid})
            assert found == ({Crossing("b", "a", int(port))} if is_seen else set())
            assert crossings({"a": server.pid}) == set(), "the client is in no other pod"
        finally:
            client.kill()


def _python(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", *words], stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_port_is_free_and_outside_the_ephemeral_range() -> None:
    port = LoopbackPorts().rendezvous(JOB, attempt="0")
    with socket.socket() as listener:
        listener.bind((ADDRESS, port))
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert port < lowest


def test_pod_gets_its_status_port_if_it_is_free() -> None:
    ports = LoopbackPorts()
    near = ports.rendezvous(JOB, attempt="0") + 1
    assert ports.status(Key("default", "a-0-0"), like=near) == near
    assert ports.status(Key("default", "a-0-0"), like=near + 1) == near
    assert ports.status(Key("default", "a-0-1"), like=near) != near


async def test_gpus_are_lent_once_and_awaited() -> None:
    pool = GpuPool(("0", "1", "2"))
    async with pool.lend(2) as first:
        assert first == ("0", "1")
        entered = asyncio.Event()

        async def late() -> tuple[str, ...]:
            async with pool.lend(2) as gpus:
                entered.set()
                return gpus

        waiting = asyncio.create_task(late())
        await asyncio.sleep(0)
        assert not entered.is_set()
    async with asyncio.timeout(10):
        assert len(set(await waiting)) == 2


async def test_cancelled_wait_for_gpus_blocks_nobody() -> None:
    pool = GpuPool(("0",))

    async def take() -> None:
        async with pool.lend(1):
            pass

    async with pool.lend(1):
        given_up = asyncio.create_task(take())
        await asyncio.sleep(0)
        given_up.cancel()
        patient = asyncio.create_task(take())
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await patient


@pytest.mark.parametrize(
    ("value", "names"), [("", ()), ("-1", ()), ("0,2", ("0", "2")), ("GPU-ab", ("GPU-ab",))]
)
def test_cuda_visible_devices_limits_the_gpus(value: str, names: tuple[str, ...]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == names


def test_gpus_of_a_container_count_mig_slices() -> None:
    limits = {"cpu": 1, "nvidia.com/gpu": "2", "nvidia.com/mig-1g.5gb": 3}
    assert gpus_of({"resources": {"limits": limits}}) == 5
    assert gpus_of({}) == 0


def test_a_workdir_serves_one_run_at_a_time(tmp_path: Path) -> None:
    first = Workdir(tmp_path)
    first.claim()
    with pytest.raises(WorkdirInUseError, match="in use by another run"):
        Workdir(tmp_path).claim()


def test_a_pods_directory_starts_empty(tmp_path: Path) -> None:
    workdir = Workdir(tmp_path)
    (workdir.fresh_pod(JOB) / "termination-log").write_text("of an earlier run")
    assert list(workdir.fresh_pod(JOB).iterdir()) == []
