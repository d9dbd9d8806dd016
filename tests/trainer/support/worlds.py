"""Pods of one job on one machine, each with its own address, and an operator's requests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.trainer.support.pods import DEADLINE_SECONDS, TOKEN, contract, until

_OF_A_PLACE = ("NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR")
SCRIPT = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
me = os.environ["DDP_POD"] + "." + os.environ["LOCAL_RANK"]
generation = os.environ["DDP_GENERATION"]
names = ["RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR"]
line = {name: os.environ[name] for name in names}
line |= {"generation": int(generation), "pid": os.getpid()}
{prelude}
with open(folder / f"{me}.began", "a") as began:
    began.write(json.dumps(line) + "\\n")
while True:
    for name in (f"{me}.{generation}", "all"):
        if (folder / name).exists():
            sys.exit(int((folder / name).read_text()))
    {turn}
    time.sleep(0.01)
"""
"""Writes its environment to a file, and ends with the exit code in another file."""


@dataclass
class WorldPod:
    """A launcher."""

    name: str
    address: str
    process: subprocess.Popen[bytes]
    folder: Path
    port: int

    def tell(
        self, generation: int, node_rank: int | None, *, token: str = TOKEN, **more: Any
    ) -> tuple[int, Any]:
        """Send an assignment; return the status and the known generation, or the error."""
        status, answer = self.put(generation, node_rank, token=token, **more)
        return status, answer["generation"] if isinstance(answer, dict) else answer

    def put(
        self,
        generation: int,
        node_rank: int | None,
        *,
        token: str = TOKEN,
        query: str = "",
        **more: Any,
    ) -> tuple[int, Any]:
        """Send an assignment; return the status and the whole answer."""
        place = {
            "jobUid": "7d1f",
            "attempt": 0,
            "generation": generation,
            "nodeRank": node_rank,
            "nodes": 2,
            "masterAddr": "127.0.0.1",
            "masterAddress": "127.0.0.1",
            "start": True,
            "graceSeconds": 60,
            **more,
        }
        return self.request("PUT", f"/world{query}", json.dumps(place), token=token)

    def news(self, *, after: int = 0, wait: int = 0, lead: int = 30) -> Any:
        """Return the news of the launcher. `lead`: see `LEAD_SECONDS`."""
        status, news = self.request("GET", f"/world?after={after}&wait={wait}&lead={lead}")
        assert status == 200, news
        return news

    def request(
        self, method: str, path: str, body: str | None = None, *, token: str = TOKEN
    ) -> tuple[int, Any]:
        """Return status and document of the answer."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=DEADLINE_SECONDS)
        with contextlib.closing(connection):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        is_json = answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(text) if is_json else text.decode()

    def wait_to_listen(self) -> None:
        """Wait until the status port is open."""

        def listens() -> bool:
            assert self.process.poll() is None, self.log
            with contextlib.suppress(ConnectionError):
                self.request("GET", "/metrics")
                return True
            return False

        until(listens, "the launcher to listen")

    @property
    def log(self) -> str:
        """Return the pod's log."""
        return (self.folder / f"{self.name}.log").read_text()

    @property
    def message(self) -> dict[str, Any]:
        """Return the termination message."""
        text = (self.folder / f"{self.name}.termination").read_text()
        message: dict[str, Any] = json.loads(text)
        return message

    def began(self, local_rank: int = 0) -> list[dict[str, Any]]:
        """Return the first environment of each process of a rank."""
        path = self.folder / f"{self.name}.{local_rank}.began"
        if not path.exists():
            return []
        *lines, _ = path.read_text().split("\n")
        return [json.loads(line) for line in lines]

    def wait_for(self, generation: int, *, count: int = 1) -> dict[str, Any]:
        """Return the environment of the `count`th process of rank 0 in a generation."""

        def there() -> bool:
            assert self.process.poll() is None, self.log
            return len(self._of(generation)) >= count

        until(there, f"{self.name} to begin in generation {generation}")
        return self._of(generation)[count - 1]

    def _of(self, generation: int) -> list[dict[str, Any]]:
        return [line for line in self.began() if line["generation"] == generation]

    def end(self, generation: int, code: int, local_rank: int = 0) -> None:
        """Let a rank end with this exit code."""
        _write(self.folder / f"{self.name}.{local_rank}.{generation}", str(code))

    def wait_for_log(self, text: str) -> None:
        """Wait until the log has this text."""
        until(lambda: text in self.log or self.process.poll() is not None, f"{text!r} in the log")
        assert text in self.log, self.log

    def wait(self) -> int:
        """Return the exit code."""
        try:
            return self.process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the pod still runs:\n{self.log}") from None


@dataclass
class WorldJob:
    """Pods that belong together."""

    folder: Path
    port: int = field(default_factory=free_port)
    pods: list[WorldPod] = field(default_factory=list)
    prelude: str = ""
    """Lines of the script at its beginning."""
    turn: str = "pass"
    """Lines in the script's loop."""
    flags: Sequence[str] = ("--no-preload",)

    def start(
        self,
        node_rank: int | None,
        *,
        variables: Mapping[str, str] | None = None,
        waits: Mapping[str, Any] | None = None,
        command: Sequence[str] = (),
        index: int | None = None,
        **settings: int,
    ) -> WorldPod:
        """Start a pod; `index` gives it the address of an earlier pod."""
        index = len(self.pods) if index is None else index
        name, address = f"pod-{len(self.pods)}", f"127.0.0.{1 + index}"
        environment = {
            **os.environ,
            **contract(node_rank=node_rank or 0, **{"nodes": 2, **settings}),
            "MASTER_ADDR": "127.0.0.1",
            "DDP_POD": name,
            "DDP_GENERATION": "1",
            "DDP_RESTART_SCOPE": "Auto",
            "DDP_HELD": "",
            "DDP_HOLD_SECONDS": "",
            "DDP_STATUS_PORT": str(self.port),
            "DDP_TERMINATION_LOG": str(self.folder / f"{name}.termination"),
            **(variables or {}),
        }
        environment = {
            variable: value
            for variable, value in environment.items()
            if value and not (node_rank is None and variable in _OF_A_PLACE)
        }
        script = self.folder / "script.py"
        script.write_text(SCRIPT.replace("{prelude}", self.prelude).replace("{turn}", self.turn))
        ranks = command or [*self.flags, "--", sys.executable, str(script), str(self.folder)]
        launcher = [sys.executable, "-m", "tests.trainer.support.launcher_at", address]
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [*launcher, json.dumps(waits or {}), *ranks],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        pod = WorldPod(name, address, process, self.folder, self.port)
        self.pods.append(pod)
        return pod

    def finish(self) -> None:
        """Let all scripts end with exit code 0."""
        _write(self.folder / "all", "0")


@contextmanager
def world_job(folder: Path, **settings: Any) -> Iterator[WorldJob]:
    """Create a job; its pods are killed at the end in any case."""
    job = WorldJob(folder, **settings)
    try:
        yield job
    finally:
        for pod in job.pods:
            if pod.process.poll() is None:
                pod.process.send_signal(signal.SIGKILL)
                pod.process.wait()


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.rename(path)
