"""Messages about a port that another process uses."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from ddp_trainer.launcher.port_conflicts import who_has_port

from tests.ports import free_port
from tests.trainer.support.pods import job

TORCHS_ERROR = (
    "rank 0 ended with exit code 1\ntorch.distributed.DistNetworkError: The server socket has "
    "failed to listen on any local network address. port: {port}, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)
STORE = """
import os, torch.distributed as dist
dist.TCPStore("127.0.0.1", int(os.environ["DDP_STATUS_PORT"]), 1, True)
"""


def test_only_a_port_in_use_is_looked_up() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert who_has_port(f"connection refused, port: {port}", own=None) == ""
        assert who_has_port(TORCHS_ERROR.format(port=free_port()), own=1) == ""


def test_script_on_the_launchers_port_gets_advice(tmp_path: Path) -> None:
    port = free_port()
    with job(tmp_path, nodes=1, extra_environment={"DDP_STATUS_PORT": str(port)}) as scripts:
        (tmp_path / "store.py").write_text(STORE)
        pod = scripts.start(0, "--", sys.executable, str(tmp_path / "store.py"))
        assert pod.wait() == 1
        first, *more = pod.message["error"].split("\n")
        remark = f"the launcher uses port {port}: choose another port, or set spec.statusPort"
        assert first == f"rank 0 ended with exit code 1; {remark}"
        assert "EADDRINUSE" in more[-1]


def test_another_process_on_the_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        script = STORE.replace('int(os.environ["DDP_STATUS_PORT"])', str(port))
        (tmp_path / "store.py").write_text(script)
        with job(tmp_path, nodes=1) as scripts:
            pod = scripts.start(0, "--", sys.executable, str(tmp_path / "store.py"))
            assert pod.wait() == 1
            first = pod.message["error"].split("\n")[0]
        assert f"; process {os.getpid()} (" in first
        assert first.endswith(f") has port {port}")
