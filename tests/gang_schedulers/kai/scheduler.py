"""KAI Scheduler as processes beside a control plane, from the folder that KAI_DIR names."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from ddp_operator.kube import Resource

from tests.cluster import ClusterUnavailableError
from tests.cluster.client import wait_until
from tests.cluster.components import START_DEADLINE_S
from tests.cluster.foreign import create, documents, location
from tests.cluster.kueue import Host
from tests.good_manifests import Json
from tests.integration.queues.queue import is_true
from tests.ports import free_port

GROUPS: Final = Resource("scheduling.run.ai", "v2alpha2", "podgroups")
QUEUES: Final = Resource("scheduling.run.ai", "v2", "queues")
_PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses")
_PRIORITY_CLASS: Final = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
_PROGRAMS: Final = ("scheduler", "binder", "podgrouper", "podgroupcontroller")
_CRDS: Final = "deployments/kai-scheduler/crds"

PRIORITIES: Final = {"low": 10, "high": 90, "fixed": 100}
"""Values of priority classes. KAI preempts groups below 100 only."""


def find() -> Path:
    """Return the folder that KAI_DIR names; without it, the tests are skipped.

    Raises ClusterUnavailableError if the folder lacks programs or CRDs.
    """
    named = os.environ.get("KAI_DIR")
    if not named:
        # Also in CI: nothing here builds KAI Scheduler.
        pytest.skip(
            "NOT RUN: NO KAI SCHEDULER: set KAI_DIR to a checkout of it in which its programs "
            f"{', '.join(_PROGRAMS)} are built"
        )
    folder = Path(named).absolute()
    missing = [part for part in (*_PROGRAMS, _CRDS) if not (folder / part).exists()]
    if missing:
        raise ClusterUnavailableError(f"KAI_DIR={folder} holds no {', '.join(missing)}")
    return folder


def start(folder: Path, beside: Host) -> None:
    """Start KAI's scheduler and the controllers that it needs, from their folder."""
    for path in sorted((folder / _CRDS).glob("*.yaml")):
        for definition in documents(path.read_text()):
            create(beside.client, definition)
            _wait_until_served(beside, definition)
    for name, value in PRIORITIES.items():
        body = {**_PRIORITY_CLASS, "metadata": {"name": name}, "value": value}
        beside.client.request("POST", _PRIORITY_CLASSES.path(), body)
    # It evicts what lacks a pod for one second, unless a group says otherwise.
    options = ["--default-staleness-grace-period=1s", "--log-json"]
    ports = [f"--listen-address=127.0.0.1:{free_port()}", f"--plugin-server-port={free_port()}"]
    _spawn(beside, folder / "scheduler", *options, *ports)
    for program in _PROGRAMS[1:]:
        # Its webhooks would need certificates.
        options = ["--enable-podgroup-webhook=false"] if program == "podgroupcontroller" else []
        ports = ["--metrics-bind-address=0", "--health-probe-bind-address=0"]
        _spawn(beside, folder / program, *options, *ports)


def _spawn(beside: Host, program: Path, *options: str) -> None:
    kubeconfig = f"KUBECONFIG={beside.kubeconfig}"
    beside.spawn_beside(f"kai-{program.name}", ["env", kubeconfig, program, *options])


def _wait_until_served(beside: Host, definition: Json) -> None:
    def served() -> bool:
        return is_true(beside.client.get(location(definition)), "Established")

    name = definition["metadata"]["name"]
    wait_until(served, what=name, deadline_s=START_DEADLINE_S)


def queues(parent: str, gpus: dict[str, int]) -> Iterator[Json]:
    """Yield queues with quotas of GPUs, and before them one with their sum. Each may borrow more
    GPUs, and other resources have no quota.
    """
    yield _queue(parent, sum(gpus.values()))
    for name, quota in gpus.items():
        yield _queue(name, quota, parentQueue=parent)


def _queue(name: str, gpus: int, **spec: Any) -> Json:
    unlimited = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    resources = {"gpu": {**unlimited, "quota": gpus}, "cpu": unlimited, "memory": unlimited}
    return {
        "apiVersion": f"{QUEUES.group}/{QUEUES.version}",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"resources": resources, **spec},
    }
