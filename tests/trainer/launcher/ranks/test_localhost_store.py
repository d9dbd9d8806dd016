"""Ranks that meet at localhost while the job has several pods."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from ddp_trainer.launcher.ranks import localhost_store
from ddp_trainer.launcher.ranks.localhost_store import LocalhostStore, own_store
from ddp_trainer.system.processes import TcpSocket

from tests.ports import free_port
from tests.trainer.support.pods import job, until

RANK_0 = """
import socket, sys, time
address, port, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
server = socket.create_server(("", port))
client = socket.create_connection((address, port))
open(folder + "/ready", "w").close()
time.sleep(600)
"""
POD = {"GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "a-0-0.a", "MASTER_PORT": "29500"}


def look(
    folder: Path,
    address: str,
    *,
    environment: Mapping[str, str] = POD,
    has_step: bool = False,
) -> tuple[str, int]:
    """Return the remark on a rank 0 that reaches its store at an address, and the store's port."""
    port = free_port()
    command = [sys.executable, "-c", RANK_0, address, str(port), str(folder)]
    remarks: list[str] = []
    with subprocess.Popen(command) as process:
        try:
            until((folder / "ready").exists, "rank 0 to listen")
            check = LocalhostStore(environment, reports_steps=lambda: has_step, say=remarks.append)
            check.begin()
            assert check.look({0: process.pid}, {0: {"RANK": "0"}}) == bool(remarks)
            assert check.remark == "".join(remarks)
        finally:
            process.kill()
    return check.remark, port


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localhost_store, "LOOKS_AT", (0.0,))


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1"])
def test_rank_0_that_reaches_its_store_at_localhost_is_named(tmp_path: Path, address: str) -> None:
    remark, port = look(tmp_path, address)
    assert remark == (
        f"rank 0 listens on port {port} and reaches it at localhost, where no other pod arrives: "
        "remove the line of the script that sets MASTER_ADDR"
    )
    assert len(remark) <= 200


@pytest.mark.parametrize(
    ("address", "environment", "has_step"),
    [
        ("127.0.0.2", POD, False),
        ("localhost", {**POD, "GROUP_WORLD_SIZE": "1"}, False),
        ("localhost", {**POD, "MASTER_ADDR": "localhost"}, False),
        ("localhost", POD, True),
    ],
    ids=["own address", "one pod", "as the operator says", "trains"],
)
def test_rank_0_that_may_do_so_gets_no_remark(
    tmp_path: Path, address: str, environment: Mapping[str, str], has_step: bool
) -> None:
    remark, _ = look(tmp_path, address, environment=environment, has_step=has_step)
    assert remark == ""


@pytest.mark.nightly
def test_launcher_logs_the_remark_while_rank_0_waits(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(RANK_0)
    port = str(free_port())
    with job(tmp_path, nodes=2, extra_environment={"MASTER_ADDR": "127.0.0.2"}) as scripts:
        command = [sys.executable, str(tmp_path / "script.py"), "localhost", port, str(tmp_path)]
        pod = scripts.start(0, "--", *command)
        pod.wait_for_log(f"rank 0 listens on port {port} and reaches it at localhost")


ANY, LOCALHOST, POD_2 = "00000000", "0100007F", "0A00010A"
SERVER = TcpSocket(ANY, 12355, ANY, 0, "0A", "1")
CLIENT = TcpSocket(LOCALHOST, 40000, LOCALHOST, 12355, "01", "2")
ACCEPTED = TcpSocket(LOCALHOST, 12355, LOCALHOST, 40000, "01", "3")
FOREIGN = TcpSocket(LOCALHOST, 12355, LOCALHOST, 40001, "01", "3")
ARRIVED = TcpSocket(POD_2, 12355, "0B00010A", 40000, "01", "3")
MEETS = TcpSocket(POD_2, 40002, POD_2, 29500, "01", "2")


@pytest.mark.parametrize(
    ("table", "port"),
    [
        ([SERVER, CLIENT, ACCEPTED], 12355),
        ([SERVER, CLIENT, ACCEPTED, ARRIVED], 0),
        ([SERVER, CLIENT, ACCEPTED, FOREIGN], 0),
        ([SERVER, CLIENT, ACCEPTED, MEETS], 0),
        ([SERVER], 0),
        ([TcpSocket(LOCALHOST, 12355, ANY, 0, "0A", "1"), CLIENT, ACCEPTED], 0),
        ([TcpSocket(ANY, 12355, ANY, 0, "0A", "9"), CLIENT, ACCEPTED], 0),
    ],
    ids=["alone", "pod arrives", "other container", "ranks meet", "no client", "local", "not ours"],
)
def test_store_counts_only_if_nobody_else_can_have_arrived(
    table: list[TcpSocket], port: int
) -> None:
    assert own_store(table, {"1", "2", "3"}, master_port=29500) == port
