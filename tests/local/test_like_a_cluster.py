"""What fails in a cluster shows in a local run, and failures take the same path."""

import json
from pathlib import Path
from typing import Any

from tests.local.command import running

FAILS_ONCE = """
import os, pathlib, time
time.sleep(6)  # the operator polls the launcher by then
mark = pathlib.Path("failed")
if os.environ["RANK"] == "1" and not mark.exists():
    mark.touch()
    raise SystemExit(3)
time.sleep(6)
"""
HOST_RESTARTS = """
import os, pathlib, time
host = os.environ["NODE_RANK"]
print(f"host {host} begins", flush=True)
time.sleep(6)  # the operator polls the launcher by then
first = pathlib.Path("failed"), pathlib.Path("came-back")
if host == "2":
    if not first[0].exists():
        first[0].touch()
        raise SystemExit(1)
    first[1].touch()
while not first[1].exists():
    time.sleep(0.1)
"""
AT_LOCALHOST = """
import os, socket, time
if os.environ["RANK"] == "0":
    server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
    peer = server.accept()[0]
else:
    while True:
        try:
            peer = socket.create_connection(("localhost", int(os.environ["MASTER_PORT"])))
            break
        except OSError:
            time.sleep(0.1)
time.sleep(4)
"""


def manifest(tmp_path: Path, script: str, **spec: Any) -> Path:
    (tmp_path / "script.py").write_text(script)
    command = ["python", str(tmp_path / "script.py")]
    trainer = {"name": "trainer", "image": "any", "command": command, "workingDir": str(tmp_path)}
    job = {
        "apiVersion": "ddp-operator.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "two"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [trainer]}}, **spec},
    }
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job))
    return file


async def test_first_failure_below_the_launcher_restarts_in_place(tmp_path: Path) -> None:
    file = manifest(tmp_path, FAILS_ONCE, launcher="inject")
    async with running(file, tmp_path / "work") as command:
        assert await command.wait() == 0
        assert "all processes restart in place (restart 1 of 3)" in command.output
        assert command.output.count("PodsCreated") == 1


async def test_script_that_meets_at_localhost_is_reported(tmp_path: Path) -> None:
    async with running(manifest(tmp_path, AT_LOCALHOST), tmp_path / "work") as command:
        assert await command.wait() == 0
        assert "pod two-0-1 reaches pod two-0-0 at localhost" in command.output


async def test_only_the_failed_pod_restarts_in_scope_pod_of_any_script(tmp_path: Path) -> None:
    """As `torchft.fsdp` needs it: the processes of the other hosts have the state."""
    spec = {"replicas": 3, "launcher": "inject", "restart": {"scope": "Pod"}}
    file = manifest(tmp_path, HOST_RESTARTS, **spec)
    async with running(file, tmp_path / "work") as command:
        assert await command.wait() == 0, command.output
    assert [command.output.count(f"| host {host} begins") for host in range(3)] == [1, 1, 2]
