"""From a pod that is taken away by force to the next step of all ranks: with a spare, with a new
pod, and with a gang that restarts.

Jobs of two pods on a real node, with the operator, that train the same with the bundled trainer.
Rank 0's pod and a worker's are deleted in turns, as when their node is gone: no connection is
closed. Measured is the longest time without a step that both ranks begin and had not begun before;
a rank that begins a step has completed the one before.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

from ddp_operator.job.membership.world import slots_of
from ddp_operator.job.pods.state import Identity

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.server.control_plane import say
from tests.cluster import ClusterError
from tests.cluster.node import Node
from tests.e2e import environment as environments
from tests.e2e.environment import Environment
from tests.e2e.jobs import Job, digits_job, force_delete
from tests.e2e.kubectl import Kubectl, wait_for
from tests.e2e.losses import STEP_LOG, StepLog

RANKS = 2
WAYS: Mapping[str, dict[str, Any]] = {
    "a spare": {"restart": {"scope": "Pod"}, "spares": 1},
    "a new pod": {"restart": {"scope": "Pod"}},
    "a new gang": {"restart": {"scope": "Gang"}},
}
_STEP_SECONDS = 0.05
_WARM_SECONDS = 10.0
"""For torch to be imported in new pods, spares among them, and then nothing to happen."""
_LOOK_SECONDS = 0.005


def measure(settings: Settings) -> Outcome:
    """Take a pod of each job away, in turns."""
    with operator_on_a_node() as (_, environment):
        return _report(settings, _outages(settings, environment), environment)


@contextmanager
def operator_on_a_node() -> Iterator[tuple[Node, Environment]]:
    """Run the operator on a real node.

    Raises:
        BenchmarkError: the block waited in vain, so its figures would mean nothing.
    """
    try:
        with environments.node_with_images() as node:
            environment = Environment(Kubectl(node.kubeconfig))
            with environment.installed():
                yield node, environment
    except (AssertionError, ClusterError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(str(error)) from error


def _outages(settings: Settings, environment: Environment) -> dict[str, list[list[float]]]:
    """By way and node rank of the lost pod: seconds of each outage."""
    kubectl = environment.new_namespace()
    found: dict[str, list[list[float]]] = {way: [[] for _ in range(RANKS)] for way in WAYS}
    try:
        for number in range(settings.repeat):
            for way, spec in WAYS.items():
                # One after the other: what another one computes would be measured, too.
                say(f"{way}: {number + 1} of {settings.repeat}")
                name = f"{way.replace(' ', '-')}-{number}"
                claim = environment.make_claim(kubectl, name)
                log = StepLog(environment.volume_path(kubectl, claim), RANKS)
                kubectl.apply(
                    digits_job(
                        name,
                        "--epochs=1000",
                        f"--step-delay-seconds={_STEP_SECONDS}",
                        "--checkpoint-every-steps=20",
                        f"--trace-samples=/checkpoints/{STEP_LOG}",
                        replicas=RANKS,
                        checkpoint={"persistentVolumeClaim": claim},
                        **spec,
                    )
                )
                for rank in range(RANKS):
                    job, spares = Job(kubectl, name), spec.get("spares", 0)
                    found[way][rank].append(_outage(job, log, rank, spares))
                kubectl.run("delete", "ddpjob", name)
    finally:
        environment.delete_namespace(kubectl)
    return found


def _outage(job: Job, log: StepLog, node_rank: int, spares: int) -> float:
    """Seconds without a new step after the pod of a node rank is gone."""
    until_steady(job, log, partial(is_whole, job, spares), warm_seconds=_WARM_SECONDS)
    status = job.status()
    slot = slots_of(status.world, RANKS)[node_rank]
    replacement = status.bookkeeping.replacements.get(str(slot), 0)
    pod = Identity(slot, status.attempt, replacement).pod_name(job.name)
    disruptions = status.disruptions

    def trains_on() -> bool:
        return job.status().disruptions > disruptions and is_whole(job, spares)

    return longest_pause(job, log, trains_on, lose=partial(force_delete, job, pod))


def until_steady(job: Job, log: StepLog, whole: Callable[[], bool], *, warm_seconds: float) -> None:
    """Wait until a job is whole and trains, and then for new pods to import torch."""
    wait_for(whole, what=f"all of {job.name}", describe=job.status)
    first = log.last()
    wait_for(lambda: min(log.last()) > max(first), what="steps", describe=job.status)
    time.sleep(warm_seconds)


def longest_pause(
    job: Job, log: StepLog, whole: Callable[[], bool], *, lose: Callable[[], object]
) -> float:
    """The longest time in seconds without a new step, from a loss until the job is whole again."""
    with _following(log) as advances:
        lose()
        wait_for(whole, what=f"{job.name} to be whole again", describe=job.status)
        count = len(advances)
        wait_for(lambda: len(advances) > count + 20, what="steps", describe=job.status)
    return max(later - earlier for earlier, later in pairwise(advances))


@contextmanager
def _following(log: StepLog) -> Iterator[list[float]]:
    """When all ranks had begun a step that not all had begun before, as long as it lasts.

    The lost pod's process may take steps yet until the kubelet ends it, so that only the longest
    pause tells.
    """
    advances: list[float] = []
    over = threading.Event()

    def look() -> None:
        last = 0
        while not over.wait(_LOOK_SECONDS):
            step = min(log.last())
            if step > last:
                last = step
                advances.append(time.monotonic())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield advances
    finally:
        over.set()
        thread.join()


def is_whole(job: Job, spares: int) -> bool:
    """Return True if all ranks run, and so many spares wait."""
    status = job.status()
    wanted = f"{RANKS}/{RANKS}" + (f" +{spares}" if spares else "")
    return status.is_true("Running") and status.ready == wanted


def _report(
    settings: Settings, found: dict[str, list[list[float]]], environment: Environment
) -> Outcome:
    major, minor = environment.kubectl.server_version()
    lines = [
        f"Kubernetes   {major}.{minor}, one bare node; operator and trainer from their images",
        f"job          {RANKS} pods of one rank, steps of {_STEP_SECONDS:g} s and what they cost",
        f"repetitions  {settings.repeat}, in turns; shown: median (min-max)",
        "",
        f"{'s without a step':18}{'rank 0 is lost':>22}{'a worker is lost':>22}",
        *(
            f"{way:18}" + "".join(f"{spread(seconds, 2):>22}" for seconds in of_ranks)
            for way, of_ranks in found.items()
        ),
    ]
    return Outcome("\n".join(lines), {**found})
