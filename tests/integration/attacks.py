"""Attacks on the operator by one tenant of the cluster, or by any pod in its network.

Each needs no rights but those to create DDPJobs in a namespace, or none at all.
"""

import asyncio
import base64
import contextlib
import json
import pickle
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import aiohttp
from ddp_operator.kube import ApiClient
from ddp_operator.ports import ClusterError

from tests.flood import flood
from tests.good_manifests import Json, container, job, template
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kubelet import FakeKubelet
from tests.trainer_server import TrainerServer

_CONNECTIONS: Final = 300
"""Enough to take an operator without limits to 600 MB."""
_CLIENTS: Final = 20
_SPEC_BYTES: Final = 240_000
_HEADERS: Final = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 8100) for number in range(110))
"""Each below aiohttp's limit; the request never ends."""


class Attacker:
    """Attacks from one namespace and from pods that have no rights."""

    def __init__(self, admin: ApiClient, namespace: str, trainer: TrainerServer) -> None:
        self._admin = admin
        self._jobs = Jobs(admin, namespace)
        self._kubelet = FakeKubelet(admin, namespace)
        self._namespace = namespace
        self._trainer = trainer
        self._hangs = 0
        self._edits = 0

    async def name_long_paths(self) -> None:
        """Create jobs whose variable `save` holds a path of many parents, or of many `@`."""
        for name, text in (("parents", "/a" * 30_000), ("ats", "/@" * (_SPEC_BYTES // 2))):
            await self._replace(job(name, replicas=2, template=_saving(text)))

    async def hang_with_shared_lists(self) -> None:
        """Run a job that makes no progress, and answer for its ranks with dumps that are small, but
        large when each of their lists is written out.
        """
        self._trainer.answer = {"step": 1, "totalSteps": 100}
        self._trainer.traces = 200, _shared_lists()
        port = self._trainer.port
        name = f"hang-{self._hangs}"  # an earlier one has restarted since
        self._hangs += 1
        await self._replace(job(name, statusPort=port, progressDeadlineSeconds=10))
        await self._jobs.until_pods(f"{name}-0-0", name=name)
        await self._kubelet.run(f"{name}-0-0", ip="127.0.0.1")

    async def suspend_jobs(self, count: int) -> None:
        """Store suspended jobs of the largest memory for their length."""
        for number in range(count):
            large = {**template(), "x": [[]] * (_SPEC_BYTES // 3), "y": number}
            await self._replace(job(f"suspended-{number}", suspend=True, template=large))

    async def edit_shell_line(self) -> None:
        """Edit a job with a command that is one long line for the shell."""
        self._edits += 1
        line = container(command=["sh", "-c", ";" * _SPEC_BYTES + str(self._edits)])
        await self._replace(job("edited", suspend=True, launcher="inject", template=template(line)))

    async def _replace(self, manifest: Json) -> None:
        """Create a job, or change the spec of the existing one."""
        name = manifest["metadata"]["name"]
        with contextlib.suppress(ClusterError):  # a busy server, or rules that refuse it
            if await self._jobs.exists(name):
                await self._jobs.set_spec(name, **manifest["spec"])
            else:
                path = JOBS.path(namespace=self._namespace)
                await self._admin.request("POST", path, body=manifest)


def unfinished_requests(port: int) -> AbstractContextManager[None]:
    """Hold connections to a port during the block, each with headers that never end."""
    headers = b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + _HEADERS
    return flood(port, headers, clients=_CLIENTS, held=_CONNECTIONS)


class Probes:
    """Asks for /healthz as a kubelet does, and keeps how long each answer took, in seconds."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/healthz"
        self.seconds: list[float] = []
        self.failures: list[str] = []

    async def keep_asking(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._ask()
            except (aiohttp.ClientError, TimeoutError) as error:
                self.failures.append(repr(error))
            self.seconds.append(time.monotonic() - began)
            await asyncio.sleep(0.5)

    async def _ask(self) -> None:
        timeout = aiohttp.ClientTimeout(total=5)  # as in manifests/install/deployment.yaml
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(self._url) as answer,
        ):
            answer.raise_for_status()


@contextlib.asynccontextmanager
async def repeated(
    *actions: Callable[[], Awaitable[Any]], pause_seconds: float
) -> AsyncIterator[None]:
    """Repeat each action, with pauses, during the block."""

    async def repeat(action: Callable[[], Awaitable[Any]]) -> None:
        while True:
            await action()
            await asyncio.sleep(pause_seconds)

    async with asyncio.TaskGroup() as tasks:
        repeating = [tasks.create_task(repeat(action)) for action in actions]
        try:
            yield
        finally:
            for task in repeating:
                task.cancel()


def _saving(text: str) -> Json:
    """Return a template in which a variable `save` has this text."""
    mount = {"name": "scratch", "mountPath": "/scratch"}
    trainer = container(env=[{"name": "save", "value": text}], volumeMounts=[mount])
    return template(trainer, volumes=[{"name": "scratch", "emptyDir": {}}])


def _shared_lists() -> bytes:
    """Return a launcher's answer of 12 KB with 1,200 operations that share 4,096 lists."""
    sizes = [[1] * 16] * 4096
    entry = {
        **{"pg_id": 0, "process_group": ("0", "default"), "profiling_name": "nccl:all_reduce"},
        **{"input_sizes": sizes, "output_sizes": sizes, "state": "scheduled"},
    }
    entries = [{**entry, "record_id": n, "collective_seq_id": n} for n in range(1200)]
    dump = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": entries}
    packed = base64.b64encode(zlib.compress(pickle.dumps(dump, protocol=2), 9)).decode()
    return json.dumps({"ranks": [{"rank": 0, "stack": "", "dump": packed}]}).encode()
