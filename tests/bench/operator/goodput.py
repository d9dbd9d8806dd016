"""Whether the seconds that a job's status says it lost are those that it takes longer.

A job that is disturbed again and again is compared with the same job left alone. Times are this
machine's, from all pods ready to the job's success, and so none of the operator's own.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import Any

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.server.control_plane import say
from tests.cluster import ClusterError
from tests.cluster.node import Node
from tests.e2e import environment as environments
from tests.e2e.environment import Environment
from tests.e2e.jobs import Job, digits_job
from tests.e2e.kubectl import Kubectl, KubectlError, Manifest, wait_for
from tests.e2e.losses import KINDS, disturb, running_pod

AIM = 0.1
"""How far what is said may be from what is so, as a part of the latter."""
DISTURBANCES = 15
SCOPES = ("Gang", "Pod")
EPOCHS = 30
"""Of 23 steps each: more than fit between fifteen disturbances."""
STEP_SECONDS = 0.25
CHECKPOINT_EVERY_STEPS = 20
TRAINING_SECONDS = 6.0
"""From the first step after a disturbance to the next one; a checkpoint is in between."""
PATIENCE_SECONDS = 180.0
JOB_SECONDS = 1800.0


@dataclass(frozen=True)
class Run:
    """One job from all pods ready to its success."""

    seconds: float
    lost_seconds: int
    disturbances: int


@dataclass(frozen=True)
class Comparison:
    """A job that was disturbed, and the same one left alone."""

    alone: Run
    disturbed: Run

    @property
    def longer(self) -> float:
        """Seconds that it took longer."""
        return self.disturbed.seconds - self.alone.seconds

    @property
    def ratio(self) -> float:
        """What is said to be lost, less what is said of the one left alone, by what is lost.

        Raises:
            BenchmarkError: nothing was lost, and so nothing can be said.
        """
        if self.longer <= 0:
            raise BenchmarkError(f"disturbing took no time: {self}")
        return (self.disturbed.lost_seconds - self.alone.lost_seconds) / self.longer


def measure(settings: Settings) -> Outcome:
    """Let a job train alone, and then disturbed, restarting by gang and by pod."""
    try:
        with environments.node_with_images() as node:
            environment = Environment(Kubectl(node.kubeconfig))
            with environment.installed():
                found: dict[str, list[Comparison]] = {scope: [] for scope in SCOPES}
                for i in range(settings.repeat):
                    say(f"alone: {i + 1} of {settings.repeat}")
                    alone = _run(node, environment, "Gang", 0)
                    for scope in SCOPES:
                        say(f"{scope}: {i + 1} of {settings.repeat}")
                        disturbed = _run(node, environment, scope, DISTURBANCES)
                        found[scope].append(Comparison(alone, disturbed))
                return report(found)
    except (AssertionError, ClusterError, KubectlError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(str(error)) from error


def report(found: dict[str, list[Comparison]]) -> Outcome:
    """Say what was found, by the scope of restarts."""
    lines = [
        f"job          two pods; {DISTURBANCES} disturbances in turns: rank or container killed,",
        "             pod deleted, pod deleted by force; a checkpoint every "
        f"{CHECKPOINT_EVERY_STEPS} steps",
        "longer       seconds from ready to success, less those of the job left alone",
        f"repetitions  {len(next(iter(found.values())))}; shown: median (min-max)",
        "",
        _row("restarts by", "lostSeconds", "longer", f"ratio, aim 1+-{AIM:g}"),
    ]
    lines += [
        _row(
            scope,
            spread([pair.disturbed.lost_seconds for pair in pairs], 0),
            spread([pair.longer for pair in pairs], 1),
            spread([pair.ratio for pair in pairs], 2),
        )
        for scope, pairs in found.items()
    ]
    data: dict[str, Any] = {
        scope: [asdict(pair) for pair in pairs] for scope, pairs in found.items()
    }
    return Outcome("\n".join(lines), data)


def _row(title: str, *cells: str) -> str:
    return f"{title:14}" + "".join(f"{cell:>22}" for cell in cells)


def _run(node: Node, environment: Environment, scope: str, disturbances: int) -> Run:
    kubectl = environment.new_namespace()
    try:
        kubectl.apply(_manifest(scope, environment.make_claim(kubectl, "job")))
        job = Job(kubectl, "job")
        job.wait_until("Running", deadline_seconds=PATIENCE_SECONDS)
        began = time.monotonic()
        for i, kind in enumerate(islice(cycle(KINDS), disturbances)):
            _wait_until_it_trains(job)
            time.sleep(TRAINING_SECONDS)
            # Either rank suffers each kind.
            disturb(node, job, kind, running_pod(job, (i + i // len(KINDS)) % 2))
            _wait_for_restart(job, i + 1)
        status = job.wait_until("Succeeded", deadline_seconds=JOB_SECONDS)
        seconds = time.monotonic() - began
        if status.goodput is None:
            raise BenchmarkError("the status accounts for nothing")
        return Run(seconds, status.goodput.lost_seconds, disturbances)
    finally:
        environment.delete_namespace(kubectl)


def _manifest(scope: str, claim: str) -> Manifest:
    return digits_job(
        "job",
        f"--epochs={EPOCHS}",
        f"--checkpoint-every-steps={CHECKPOINT_EVERY_STEPS}",
        f"--step-delay-seconds={STEP_SECONDS}",
        "--max-restarts=0",  # a rank that dies takes its pod along, as the operator sees it
        checkpoint={"persistentVolumeClaim": claim},
        restart={"scope": scope, "maxRestarts": 100, "backoff": {"initialSeconds": 0}},
    )


def _wait_until_it_trains(job: Job) -> None:
    def trains() -> bool:
        status = job.status()
        assert not status.finished, f"it is {status.phase} too early: {status.message}"
        out = status.goodput is not None and status.goodput.outage is not None
        return status.phase == "Running" and not out

    wait_for(trains, what="steps", deadline_seconds=PATIENCE_SECONDS, describe=job.status)


def _wait_for_restart(job: Job, count: int) -> None:
    def counted() -> bool:
        status = job.status()
        return status.restarts + status.disruptions >= count

    wait_for(
        counted,
        what=f"restart {count}",
        deadline_seconds=PATIENCE_SECONDS,
        describe=job.status,
    )
