"""How much longer a training takes when a fault comes every 20 s, and every 60 s, by the way in
which it continues.

Jobs of two pods of one rank on a real node, with the operator, take a fixed number of steps. Faults
come at fixed times after all ranks have begun to train, also while the job recovers: a pod is
deleted by force, as when its node is gone, or a rank's process is killed in its pod, rank 0's
included. Where nothing is left to be hit, none comes. A way's time is compared with its own, left
alone in the same repetition.

Three ways are the bundled trainer's, which continues from memory: a spare takes the lost pod's
place, the group continues with fewer pods until a new one is there, or it waits for the new pod.
Three are those of a plain script with snapshots (`scripts/resuming_ddp.py`): its processes restart
in their pods, all pods restart, or torchrun's elastic agent in each pod restarts the processes,
with the store at rank 0, while the operator replaces lost pods one by one.

A step is mostly a pause, so that the machine has time for what recovers: what a smaller group
computes more slowly, and what the models of GPUs take longer to move, is not in the figures.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ddp_operator.api.constants import LABEL_INDEX
from ddp_operator.job.membership.world import slots_of

from tests.bench.benchmark import BenchmarkError, Outcome, Settings
from tests.bench.operator.lost_pod import RANKS, operator_on_a_node
from tests.bench.reports import faults as report
from tests.bench.reports.faults import Fault, Pace, Pair, Run
from tests.bench.scripts import resuming_ddp
from tests.bench.server.control_plane import say
from tests.e2e.environment import Environment
from tests.e2e.jobs import Job, digits_job, force_delete, kill_rank, script_job
from tests.e2e.kubectl import Manifest, wait_for
from tests.e2e.losses import last_step

WAYS: Mapping[str, dict[str, Any]] = {
    "spares": {"restart": {"scope": "Pod"}, "spares": 1},
    "elastic": {
        "restart": {"scope": "Pod"},
        "elastic": {"minReplicas": 1, "shrinkAfterSeconds": 1, "growAfterSeconds": 1},
    },
    "Pod": {"restart": {"scope": "Pod"}},
    "InPlace": {"restart": {"scope": "InPlace"}},
    "Gang": {"restart": {"scope": "Gang"}},
    "torchrun": {"restart": {"scope": "Pod"}},
}
AIMS = {"spares": 1.05, "elastic": 1.10}
STEP_SECONDS = 0.1
PACES = (Pace(every_seconds=20, steps=600), Pace(every_seconds=60, steps=1200))
"""Left alone, 65 s and 130 s."""
GIVEN_UP_SECONDS = 300.0
_SCRIPTED = {
    "InPlace": "python -m ddp_trainer.launch -- python",
    "Gang": "python -m ddp_trainer.launch -- python",
    # The host of the store must be named: a pod may not know itself by the name of its Service.
    "torchrun": f"torchrun --nnodes={RANKS} --nproc-per-node=1 --max-restarts=1000"
    " --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"
    " --rdzv-conf=is_host=$((NODE_RANK == 0))",
}
"""The command that starts the plain script."""
_BEGUN = "begun"
_LOOK_SECONDS = 0.5


def measure(settings: Settings) -> Outcome:
    """Let each way train alone and under faults, in turns."""
    found: dict[str, dict[Pace, list[Pair]]] = {way: {pace: [] for pace in PACES} for way in WAYS}
    with operator_on_a_node() as (_, environment):
        for repetition in range(settings.repeat):
            for pace in PACES:
                for way, by_pace in found.items():
                    by_pace[pace].append(_pair(environment, way, pace, repetition))
        return _report(settings, found, environment)


def _pair(environment: Environment, way: str, pace: Pace, repetition: int) -> Pair:
    told = f"{way}, a fault every {pace.every_seconds} s, repetition {repetition + 1}"
    alone = _run(environment, way, pace, None)
    if not alone.finished:
        raise BenchmarkError(f"{told}: not done after {alone.seconds:.0f} s, though left alone")
    disturbed = _run(environment, way, pace, repetition)
    say(f"{told}: {disturbed.seconds:.1f} s, alone {alone.seconds:.1f} s, {disturbed.faults} hit")
    return Pair(alone, disturbed)


def _run(environment: Environment, way: str, pace: Pace, repetition: int | None) -> Run:
    """One training; without a number of the repetition it is left alone."""
    kubectl = environment.new_namespace()
    try:
        claim = environment.make_claim(kubectl, "job")
        kubectl.apply(manifest(way, pace.steps, claim))
        job, folder = Job(kubectl, "job"), environment.volume_path(kubectl, claim)
        wait_for(partial(_all_train, folder), what="steps of all ranks", describe=job.status)
        began = time.monotonic()
        faults = pace.faults(repetition) if repetition is not None else iter(())
        hit = 0
        due, fault = next(faults, (GIVEN_UP_SECONDS, None))
        while not (status := job.status()).finished:
            time.sleep(_LOOK_SECONDS)
            elapsed = time.monotonic() - began
            if elapsed > GIVEN_UP_SECONDS:
                return Run(elapsed, hit, finished=False)
            if fault and elapsed >= due:
                hit += _strike(job, fault)
                due, fault = next(faults)
        if status.phase != "Succeeded":
            say(f"{way}: {status.phase}: {status.message}")
        return Run(time.monotonic() - began, hit, finished=status.phase == "Succeeded")
    finally:
        environment.delete_namespace(kubectl)


def manifest(way: str, steps: int, claim: str) -> Manifest:
    """The job; no budget and no pause between restarts decides how long it takes."""
    spec = dict(WAYS[way])
    spec["restart"] = {**spec["restart"], "maxRestarts": 1000, "backoff": {"initialSeconds": 0}}
    spec |= {"replicas": RANKS, "checkpoint": {"persistentVolumeClaim": claim}}
    if start := _SCRIPTED.get(way):
        command = f"{start} /tmp/script.py /checkpoints {steps} {STEP_SECONDS}"
        job = script_job("job", Path(resuming_ddp.__file__).read_text(), command, **spec)
    else:
        every = resuming_ddp.CHECKPOINT_EVERY_STEPS
        job = digits_job(
            "job",
            *("--epochs=1000000", f"--max-steps={steps}", f"--step-delay-seconds={STEP_SECONDS}"),
            *(f"--checkpoint-every-steps={every}", "--max-restarts=1000"),
            f"--trace-samples=/checkpoints/{_BEGUN}",
            **spec,
        )
    (container,) = job["spec"]["template"]["spec"]["containers"]
    # Threads that wait for each other busily take the cores from all others.
    container.setdefault("env", []).append({"name": "OMP_NUM_THREADS", "value": "1"})
    return job


def _all_train(folder: Path) -> bool:
    return all(last_step(folder / f"{_BEGUN}.rank{rank}") for rank in range(RANKS))


def _strike(job: Job, fault: Fault) -> bool:
    """Let a fault come; returns whether it hit anything."""
    slot = slots_of(job.status().world, RANKS)[fault.node_rank]
    victims = [
        pod["metadata"]["name"]
        for pod in job.pods()
        if pod["metadata"]["labels"][LABEL_INDEX] == str(slot)
        and pod["status"]["phase"] in ("Pending", "Running")
        and "deletionTimestamp" not in pod["metadata"]
    ]
    if not victims:
        return False
    try:
        if fault.kind == "delete pod":
            force_delete(job, *victims)
        else:
            kill_rank(job, victims[-1])
    except AssertionError as nothing_there:  # gone meanwhile, or without a process yet
        say(f"missed: {fault}: {nothing_there}")
        return False
    return True


def _report(settings: Settings, found: report.Found, environment: Environment) -> Outcome:
    major, minor = environment.kubectl.server_version()
    outcome = report.table(found, AIMS)
    lengths = " or ".join(f"{pace.steps}" for pace in PACES)
    lines = [
        f"Kubernetes   {major}.{minor}, one bare node; operator and trainer from their images",
        f"job          {RANKS} pods of one rank; {lengths} steps of {STEP_SECONDS:g} s and more; "
        f"a checkpoint",
        f"             every {resuming_ddp.CHECKPOINT_EVERY_STEPS} steps; no pause before restarts",
        "faults       in turns: pod deleted by force, process killed, of rank 0 and 1",
        f"repetitions  {settings.repeat}, in turns; shown: median (min-max)",
        "spares, elastic, Pod: the bundled trainer; the others: a script with snapshots",
        "",
        outcome.text,
    ]
    return Outcome("\n".join(lines), outcome.data)
