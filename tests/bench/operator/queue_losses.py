"""From the loss of a rank or a pod to the next step of all ranks, of jobs that keep their place in
a queue.

A job of two pods trains on a real node with the operator and Kueue, once with a spare and once
without, while another one waits for its quota. Each loses a random rank 25 times in each
repetition, by a random kind of loss of `tests.e2e.losses`. A pod that is deleted by force is what
is left to recover from once a node is known to be gone. BENCH_SEED repeats the losses of an earlier
run.

Measured is the longest time without a step that both ranks begin and had not begun before. The job
must keep its only Workload and its quota.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ddp_operator.job.membership.world import slots_of

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.operator.lost_pod import (
    RANKS,
    is_whole,
    longest_pause,
    operator_on_a_node,
    until_steady,
)
from tests.bench.server.control_plane import say
from tests.cluster.kueue import Kueue
from tests.cluster.node import Node
from tests.e2e.environment import Environment
from tests.e2e.jobs import Job, digits_job
from tests.e2e.kubectl import Manifest, wait_for
from tests.e2e.losses import KINDS, STEP_LOG, StepLog, disturb, running_pod
from tests.e2e.queues import Queue, queued
from tests.integration.queues.queue import CHIP

AIMS: Mapping[str, float] = {"a spare": 1.0, "no spare": 5.0}
"""Seconds: the median of all losses."""
_SPARES: Mapping[str, int] = {"a spare": 1, "no spare": 0}
_LOSSES = 25
"""Of each way, in each repetition."""
_STEP_SECONDS = 0.05
_LATER = ("delete pod", "force-delete pod")
"""Kinds after which the rank still trains for a while."""
_WARM_SECONDS = 4.0
"""For a new spare to import torch, so that this is not measured, too."""

Found = dict[str, dict[str, list[float]]]
"""Seconds without training, by spares and by kind of loss."""


def measure(settings: Settings) -> Outcome:
    """Let both jobs lose ranks and pods."""
    seed = int(os.environ.get("BENCH_SEED") or random.randrange(10**6))
    say(f"BENCH_SEED={seed} repeats these losses")
    chance, number = random.Random(seed), _LOSSES * settings.repeat
    losses = {way: draw(chance, number) for way in AIMS}
    with operator_on_a_node() as (node, environment):
        node.set_capacity(CHIP, 2 * RANKS)
        kueue = Kueue(node)
        kueue.install()
        try:
            found = {way: _outages(node, environment, way, losses[way]) for way in AIMS}
        finally:
            environment.wait_until_namespaces_are_gone()
            kueue.uninstall()
        return _report(seed, number, found, environment)


def draw(chance: random.Random, number: int) -> list[tuple[str, int]]:
    """Return so many kinds of loss, each with the rank that is lost."""
    return [(chance.choice(KINDS), chance.randrange(RANKS)) for _ in range(number)]


def _outages(
    node: Node, environment: Environment, way: str, losses: Sequence[tuple[str, int]]
) -> dict[str, list[float]]:
    kubectl = environment.new_namespace()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    try:
        queue = Queue.made(kubectl, RANKS + _SPARES[way])
        job = Job(kubectl, "job")
        kubectl.apply(_manifest(job.name, environment.make_claim(kubectl, job.name), way))
        place = queue.place(job)
        kubectl.apply(queued(digits_job("other")))
        other = Job(kubectl, "other")
        queue.until_queued(other)
        job.wait_until_launcher_answers("Pod")
        log = StepLog(environment.volume_path(kubectl, job.name), RANKS)
        for number, (kind, rank) in enumerate(losses, start=1):
            seconds = _outage(node, job, log, kind, rank, way)
            say(f"{way}: {number} of {len(losses)}: {kind}, rank {rank}: {seconds:.2f} s")
            found[kind].append(seconds)
            if queue.place(job) != place or len(queue.workloads(job)) != 1:
                raise BenchmarkError(f"{kind}: the job lost its place in the queue")
            if other.status().reason != "Queued":
                raise BenchmarkError(f"{kind}: the other job no longer waits in the queue")
    finally:
        environment.delete_namespace(kubectl)
    return found


def _manifest(name: str, claim: str, way: str) -> Manifest:
    return queued(
        digits_job(
            name,
            "--epochs=100000",
            f"--step-delay-seconds={_STEP_SECONDS}",
            "--checkpoint-every-steps=100000",
            f"--trace-samples=/checkpoints/{STEP_LOG}",
            replicas=RANKS,
            spares=_SPARES[way],
            checkpoint={"persistentVolumeClaim": claim},
            restart={"scope": "Auto", "maxRestarts": 1000, "backoff": {"initialSeconds": 0}},
        )
    )


def _outage(node: Node, job: Job, log: StepLog, kind: str, rank: int, way: str) -> float:
    """Return the seconds without a new step after one loss."""
    whole = partial(is_whole, job, _SPARES[way])
    until_steady(job, log, whole, warm_seconds=_WARM_SECONDS)
    status = job.status()
    pod = running_pod(job, slots_of(status.world, RANKS)[rank])
    before = _count(job)

    def lose() -> None:
        disturb(node, job, kind, pod)
        if kind in _LATER:
            wait_for(lambda: _count(job) > before, what=f"what {kind} does", describe=job.status)

    return longest_pause(job, log, whole, lose=lose)


def _count(job: Job) -> int:
    status = job.status()
    return status.restarts + status.disruptions


def _report(seed: int, number: int, found: Found, environment: Environment) -> Outcome:
    major, minor = environment.kubectl.server_version()
    lines = [
        f"Kubernetes   {major}.{minor}, one bare node, Kueue; operator and trainer from images",
        f"job          {RANKS} pods of one rank, steps of {_STEP_SECONDS:g} s and what they cost;",
        "             another job waits for its quota all the time",
        f"losses       {number} with and {number} without a spare, BENCH_SEED={seed};",
        "             one Workload all the time; shown: median (min-max), times",
        "",
        _row("s without a step", *AIMS),
        *(_row(kind, *(_cell(found[way][kind]) for way in AIMS)) for kind in KINDS),
        _row("all", *(_cell([*chain(*found[way].values())]) for way in AIMS)),
        _row("aim of the median", *(f"{aim:g}" for aim in AIMS.values())),
    ]
    data: dict[str, Any] = {**found, "seed": seed}
    return Outcome("\n".join(lines), data)


def _cell(seconds: Sequence[float]) -> str:
    return f"{spread(seconds, 2)}, {len(seconds)}" if seconds else "none"


def _row(title: str, *cells: str) -> str:
    return f"{title:18}" + "".join(f"{cell:>24}" for cell in cells)
