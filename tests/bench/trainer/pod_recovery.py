"""From `kill -9` of a whole pod to the next step of all ranks, on a real node with the operator.

The pod's start is shown apart: it is the kubelet's, the container runtime's and Python's. What is
our own is the operator's answer, and all that the trainer does once the new rank's process has
torch. Times are the kernel's, a watch's, a log's and those of the steps that ranks write down when
they begin them: all of one machine's clock.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ddp_operator.api.constants import LABEL_INDEX, LABEL_JOB_NAME

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.reports.pod_outage import (
    RANKS,
    Begun,
    Moments,
    Outage,
    outage,
    steps_in,
    time_of_line,
)
from tests.bench.server.control_plane import say
from tests.cluster import ClusterError
from tests.cluster.client import ApiClient
from tests.cluster.node import Node
from tests.e2e import environment as environments
from tests.e2e.environment import Environment
from tests.e2e.jobs import Job, digits_job
from tests.e2e.kubectl import Kubectl, Manifest

AIM_SECONDS = 1.0
"""Of our own, on top of the pod's start."""
STEP_SECONDS = 0.02
CHECKPOINT_EVERY_STEPS = 100
STEPS_BETWEEN_KILLS = 250
PATIENCE_SECONDS = 180.0
JOB = "digits"
_TRACE = "steps"
_POLL_SECONDS = 0.002
_WATCH_SECONDS = 3600
_SURELY_TOGETHER_STEPS = 5
"""A broken group may get one step further, but not so many."""
_ROWS = (
    ("the other rank notices", "noticed"),
    ("the kubelet reports the end", "kubelet"),
    ("+ the operator creates another pod", "operator"),
    ("+ its container starts", "pod"),
    ("+ Python has torch", "python"),
    ("+ the ranks meet and train on", "trainer"),
    ("= all of it", "total"),
    ("our own: operator and trainer", "own"),
)
"""What is shown, and the field of an outage that says it."""
_STARTS = """
import json, os, pathlib, time
booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
def began(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
(rank,) = [comm.parent.name for comm in pathlib.Path("/proc").glob("[0-9]*/comm")
           if comm.read_text().startswith("ddp-rank-")]
print(json.dumps([began(1), began(rank)]))
"""
"""Run in a pod: when its first process and its rank's process began, as the kernel knows it."""


def measure(settings: Settings) -> Outcome:
    """Kill the container of either pod, in turns."""
    try:
        with environments.node_with_images() as node:
            environment = Environment(Kubectl(node.kubeconfig))
            with environment.installed():
                return _report(settings, _outages(settings, node, environment), environment)
    except (AssertionError, ClusterError, ValueError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(str(error)) from error


def _outages(settings: Settings, node: Node, environment: Environment) -> dict[str, list[Outage]]:
    kubectl = environment.new_namespace()
    try:
        claim = environment.make_claim(kubectl, JOB)
        trace = environment.volume_path(kubectl, claim) / _TRACE
        kubectl.apply(_manifest(claim))
        found: dict[str, list[Outage]] = {}
        with _watched(node.client, kubectl.namespace) as told:
            subject = _Subject(node, Job(kubectl, JOB), _StepLog(trace), told)
            for i in range(settings.repeat):
                for rank in (1, 0):
                    say(f"rank {rank}: {i + 1} of {settings.repeat}")
                    found.setdefault(f"rank {rank}'s pod", []).append(subject.lose(rank))
        return found
    finally:
        environment.delete_namespace(kubectl)


def _manifest(claim: str) -> Manifest:
    job = digits_job(
        JOB,
        "--epochs=100000",
        f"--trace-samples=/checkpoints/{_TRACE}",
        f"--checkpoint-every-steps={CHECKPOINT_EVERY_STEPS}",
        f"--step-delay-seconds={STEP_SECONDS}",
        replicas=RANKS,
        checkpoint={"persistentVolumeClaim": claim},
        # It is killed again and again, and sooner than anybody sees its progress.
        restart={"scope": "Pod", "maxRestarts": 100, "backoff": {"initialSeconds": 0}},
    )
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "OMP_NUM_THREADS", "value": "1"}]
    return job


@dataclass(frozen=True)
class _Told:
    """What a watch has told of a pod."""

    at: float
    pod: Any


class _StepLog:
    """The steps that ranks have begun, followed as they write them."""

    def __init__(self, path: Path) -> None:
        self._paths = [path.with_name(f"{path.name}.rank{rank}") for rank in range(RANKS)]
        self._read = [0] * RANKS
        self.begun: list[Begun] = []

    def look(self) -> int:
        """Take in what is new; returns the step that all ranks have begun."""
        for rank, path in enumerate(self._paths):
            if path.exists() and path.stat().st_size > self._read[rank]:
                with path.open("rb") as file:
                    file.seek(self._read[rank])
                    # A line that is being written is none yet.
                    whole, end, _ = file.read().rpartition(b"\n")
                self._read[rank] += len(whole) + len(end)
                self.begun += steps_in(whole, rank=rank, at=time.time())
        return min(self.highest(rank) for rank in range(RANKS))

    def highest(self, rank: int) -> int:
        """The last step that a rank has begun; 0: none."""
        return next((one.step for one in reversed(self.begun) if one.rank == rank), 0)


@dataclass(frozen=True)
class _Subject:
    """The job that loses its pods."""

    node: Node
    job: Job
    steps: _StepLog
    told: list[_Told]

    def lose(self, rank: int) -> Outage:
        """Kill the container of a rank's pod, and see what comes of it."""
        self._train(STEPS_BETWEEN_KILLS)
        self.job.wait_until("Running")
        lost, other = self._pod(rank), self._pod(1 - rank)
        killed = time.time()
        self.node.kill_container(lost)
        self._train(_SURELY_TOGETHER_STEPS)
        self.job.wait_until("Running")

        new, kubectl = self._pod(rank), self.job.kubectl
        starts = kubectl.run("exec", new["metadata"]["name"], "--", "python", "-c", _STARTS)
        container, ready = json.loads(starts)
        log = kubectl.run("logs", "--timestamps", other["metadata"]["name"])
        moments = Moments(
            killed=killed,
            noticed=time_of_line(log, "the group broke at step", since=killed),
            reported=self._first_told(lost, _ended),
            created=self._first_told(new, lambda _: True),
            container=container,
            ready=ready,
        )
        return outage(moments, self.steps.begun)

    def _train(self, steps: int) -> None:
        """Return when all ranks have trained so many steps further than any had come before."""
        self.steps.look()
        goal = max(self.steps.highest(rank) for rank in range(RANKS)) + steps
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.steps.look() < goal:
            if time.monotonic() > deadline:
                raise BenchmarkError(
                    f"no {steps} steps in {PATIENCE_SECONDS:.0f} s: {self.job.status()}"
                )
            time.sleep(_POLL_SECONDS)

    def _first_told(self, pod: Any, condition: Callable[[Any], bool]) -> float:
        uid = pod["metadata"]["uid"]
        for told in self.told:
            if told.pod["metadata"]["uid"] == uid and condition(told.pod):
                return told.at
        raise BenchmarkError(f"the watch has not told of {pod['metadata']['name']}")

    def _pod(self, rank: int) -> Any:
        (pod,) = [
            pod
            for pod in self.job.pods()
            if pod["metadata"]["labels"][LABEL_INDEX] == str(rank)
            and pod["status"]["phase"] == "Running"
        ]
        return pod


def _ended(pod: Any) -> bool:
    statuses = pod["status"].get("containerStatuses", ())
    return any("terminated" in status["state"] for status in statuses)


@contextmanager
def _watched(client: ApiClient, namespace: str) -> Iterator[list[_Told]]:
    """What a watch tells of a namespace's pods of jobs, with the time when it did."""
    path = f"/api/v1/namespaces/{namespace}/pods?labelSelector={LABEL_JOB_NAME}"
    version = client.get(path)["metadata"]["resourceVersion"]
    query = f"watch=1&resourceVersion={version}&timeoutSeconds={_WATCH_SECONDS}"
    told: list[_Told] = []

    def follow() -> None:
        with suppress(OSError, HTTPException):  # what it should have told is missed later on
            for line in client.lines(f"{path}&{query}", timeout_s=_WATCH_SECONDS):
                one = _Told(time.time(), json.loads(line)["object"])
                told.append(one)

    threading.Thread(target=follow, name="watch", daemon=True).start()
    yield told


def _report(
    settings: Settings, found: dict[str, list[Outage]], environment: Environment
) -> Outcome:
    met = all(
        outage.own <= AIM_SECONDS and outage.steps_again == 0
        for outages in found.values()
        for outage in outages
    )
    major, minor = environment.kubectl.server_version()
    lines = [
        f"Kubernetes   {major}.{minor}, one bare node; operator and trainer from their images",
        f"job          {RANKS} pods of one rank, gloo, one thread each; restart.scope Pod",
        f"repetitions  {settings.repeat}, in turns; shown: median (min-max)",
        f"a step takes {STEP_SECONDS} s and more; checkpoints every {CHECKPOINT_EVERY_STEPS} steps",
        "",
        _row("seconds after kill -9 of the container of", list(found)),
    ]
    for title, name in _ROWS:
        figures = [[float(getattr(one, name)) for one in outages] for outages in found.values()]
        lines.append(_row(title, [spread(seconds, 2) for seconds in figures]))
    again = [spread([float(one.steps_again) for one in some], 0) for some in found.values()]
    lines += [
        _row("steps done again", again),
        "",
        f"aim: our own ≤ {AIM_SECONDS} s, no step again: {'met' if met else 'MISSED'}",
    ]
    data = {
        name: [{**asdict(one), "total": one.total, "own": one.own} for one in outages]
        for name, outages in found.items()
    }
    return Outcome("\n".join(lines), {"kubernetes": f"{major}.{minor}", "outages": data})


def _row(title: str, cells: list[str]) -> str:
    return f"{title:42}" + "".join(f"{cell:>19}" for cell in cells)
