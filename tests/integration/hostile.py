"""A user of one namespace who does everything that the API server permits to harm the operator."""

import asyncio
import contextlib
import itertools
import time
from typing import Any, Final

from ddp_operator.api.constants import (
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB_NAME,
    LABEL_REPLACEMENT,
    LABEL_SERVING,
)
from ddp_operator.kube import PODS, ApiClient
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import ClusterError, NotFoundError

from tests.good_manifests import Json, container, job, template
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kubelet import FakeKubelet

_MB: Final = 1_200_000
"""About the maximal size of an object. Strings and lists have all of it, because the server also
stores the manager of each key of a map."""
_WORDS: Final = "é" * 2000
"""The longest termination message that a kubelet accepts."""

_SLOW: Final = 20

_JUNK: Final[list[Json]] = [
    {"completedIndexes": "0-9999," * (_MB // 7)},
    {"replacements": {str(i): 1 for i in range(2000)}},
    {"phase": "Failed"},
    {"attempt": 10**15, "restarts": -(10**15), "suspendedSeconds": 2**62},
    {"startTime": "9999-12-31T23:59:59Z", "nextStartTime": "0001-01-01T00:00:00Z"},
    {"message": "m" * _MB, "excludedNodes": ["n"] * 50_000},
]


class Hostile:
    """Has jobs, pods and trainers in a namespace; `trainer` is a trainer's port on loopback."""

    def __init__(self, admin: ApiClient, namespace: str, *, trainer: int) -> None:
        self._admin = admin
        self._jobs = Jobs(admin, namespace)
        self._kubelet = FakeKubelet(admin, namespace)
        self._namespace = namespace
        self._trainer = trainer

    async def store(self) -> None:
        """Store large and invalid objects that an operator finds when it starts."""
        lists: list[Any] = [[]] * (_MB // 3)  # most memory for its length
        for i in range(4):
            large = job(f"large-{i}", template={**template(), "x": lists})
            await self._admin.request("POST", JOBS.path(namespace=self._namespace), body=large)
        for i, junk in enumerate(_JUNK):
            await self._jobs.create(job(), name=f"junk-{i}")
            await self._write_status(f"junk-{i}", junk)
        await self._forge()
        rules = [
            {"messageRegex": f"(?:.?){{200}}{letter}", "action": "Ignore"}
            for letter in "bcdefghijklmnopq"
        ]
        await self._jobs.create(job("slow", replicas=_SLOW, restart={"rules": rules}))
        await self._jobs.until_pods(*(f"slow-0-{i}" for i in range(_SLOW)), name="slow")

    async def fail(self) -> None:
        """Fail the twenty pods of `slow` with messages that sixteen rules search."""
        for i in range(_SLOW):
            await self._kubelet.fail(f"slow-0-{i}", message=f"{_WORDS}{i}")

    async def keep_asked(self) -> None:
        """Run trainers with endless answers."""
        for i in range(4):
            await self._jobs.create(job(f"endless-{i}", statusPort=self._trainer))
            await self._jobs.until_pods(f"endless-{i}-0-0", name=f"endless-{i}")
            await self._kubelet.run(f"endless-{i}-0-0", ip="127.0.0.1")

    async def churn(self, name: str) -> None:
        """Change one job again and again.

        Each turn is followed by a pause of twice its length, so that three of these keep the API
        server busy with one request, as its fairness between users would. Without pauses these
        large writes would starve the server itself, and no operator could renew its lease.
        """
        for turn in itertools.count():
            began = time.monotonic()
            with contextlib.suppress(ClusterError):  # the last turn may have left the job
                await self._jobs.create(job(name, replicas=3))
                await self._jobs.annotate(name, restart_requested="x" * 100_000 + str(turn))
                await self._jobs.set_spec(name, suspend=True)
                await self._write_status(name, _JUNK[turn % len(_JUNK)])
                await self._jobs.set_spec(name, suspend=False, replicas=3)
                await self._jobs.annotate(name, restart_requested=str(turn))
                await self._jobs.delete(name)
            await asyncio.sleep(2 * (time.monotonic() - began))

    async def _write_status(self, name: str, status: Json) -> None:
        path = JOBS.path(namespace=self._namespace, name=name, subresource="status")
        body = {"status": status}
        await self._admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def _forge(self) -> None:
        """Create pods that look like a job's."""
        owned = await self._jobs.create(job("forged", replicas=2, suspend=True))
        labels: list[dict[str, Any]] = [
            {LABEL_INDEX: "0", LABEL_ATTEMPT: "0"},
            {LABEL_INDEX: "1", LABEL_ATTEMPT: "9" * 60},
            {LABEL_INDEX: "9" * 60, LABEL_ATTEMPT: "0", LABEL_REPLACEMENT: "9" * 60},
            {LABEL_INDEX: "first", LABEL_ATTEMPT: "0"},
            {},
        ]
        owners: list[list[Json]] = [[], [_owner(owned, owned["metadata"]["uid"])]]
        owners.append([_owner(owned, "00000000-0000-0000-0000-000000000000")])
        for i, (own, owner) in enumerate(itertools.product(labels, owners)):
            metadata = {
                "name": f"forged-0-{i}",
                "labels": {LABEL_JOB_NAME: "forged", LABEL_SERVING: "true", **own},
                "ownerReferences": owner,
            }
            spec = {"containers": [container()], "terminationGracePeriodSeconds": 2**62}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            await self._admin.request("POST", PODS.path(namespace=self._namespace), body=pod)
        for i in range(0, 15, 2):
            with contextlib.suppress(NotFoundError):  # the garbage collector was faster
                await self._jobs.delete_pod(f"forged-0-{i}")


def _owner(manifest: Json, uid: str) -> Json:
    return {
        **{"apiVersion": manifest["apiVersion"], "kind": manifest["kind"]},
        **{"name": manifest["metadata"]["name"], "uid": uid, "controller": True},
    }
