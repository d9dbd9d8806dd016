"""A plain script trains on while there is no control plane, and its ranks die again and again.

Run by hand alone, with CHAOS_OUTAGE_SECONDS and CHAOS_OUTAGE_KILLS: 120 and 6, or 600 and 20.
"""

import os
import time
from pathlib import Path
from typing import Final

import pytest
from ddp_operator.job.failure.records import MAX_FAILURES

from tests.chaos.conftest import Victim
from tests.e2e.environment import OPERATOR_NAMESPACE
from tests.e2e.jobs import Job, dump, script_job
from tests.e2e.kubectl import Kubectl, wait_for

_GIVEN: Final = os.environ.get("CHAOS_OUTAGE_SECONDS", "")
OUTAGE_SECONDS: Final = float(_GIVEN or 120)
KILLS: Final = int(os.environ.get("CHAOS_OUTAGE_KILLS") or 6)
SETTLED_SECONDS: Final = 11.0
"""After a generation that failed sooner, a launcher waits longer before it leads the next."""
LEAD_SECONDS: Final = 60.0
"""The longest time until the launcher of rank 0 leads, also the first time."""
REPLICAS: Final = 3

SCRIPT = """
import os, pathlib, signal, time

folder = pathlib.Path("/checkpoints")
rank, generation = os.environ["RANK"], os.environ["DDP_GENERATION"]
(folder / f"began-{generation}-{rank}").touch()
while not (folder / "end").exists():
    if (folder / f"kill-{generation}-{rank}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
"""

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900 + 2 * OUTAGE_SECONDS),
    pytest.mark.skipif(not _GIVEN, reason="an outage of minutes: set CHAOS_OUTAGE_SECONDS"),
]


def test_ranks_that_die_without_a_control_plane_cost_no_pod(
    victim: Victim, namespace: Kubectl
) -> None:
    name = "nobody-home"
    claim = victim.environment.make_claim(namespace, name)
    folder = victim.environment.volume_path(namespace, claim)
    namespace.apply(
        script_job(
            name,
            SCRIPT,
            "python -m ddp_trainer.launch -- python /tmp/script.py",
            replicas=REPLICAS,
            checkpoint={"persistentVolumeClaim": claim},
            restart={"scope": "InPlace", "maxRestarts": 100},
        )
    )
    job = Job(namespace, name)
    try:
        job.wait_until("Running")
        job.wait_until_launcher_answers()
        _wait_until_begun(folder, 0)
        pods = job.uids()
        lasted = _outage(victim, folder)
        _check(job, pods, lasted)
        (folder / "end").touch()
        job.wait_until("Succeeded")
        assert job.uids().items() >= pods.items()
    except BaseException:
        print(dump(victim.environment.kubectl, [namespace.namespace], OPERATOR_NAMESPACE))
        raise


def _outage(victim: Victim, folder: Path) -> float:
    """Kill ranks while there is no control plane; return how long there was none."""
    victim.node.stop_control_plane()
    began = time.monotonic()
    try:
        pause = OUTAGE_SECONDS / (KILLS + 1)
        for generation in range(KILLS):
            due = began + (generation + 1) * pause
            time.sleep(max(due - time.monotonic(), SETTLED_SECONDS))
            (folder / f"kill-{generation}-{generation % REPLICAS}").touch()
            _wait_until_begun(folder, generation + 1)
        time.sleep(max(began + OUTAGE_SECONDS - time.monotonic(), SETTLED_SECONDS))
    finally:
        victim.node.start_control_plane()
    return time.monotonic() - began


def _wait_until_begun(folder: Path, generation: int) -> None:
    def begun() -> bool:
        return len(list(folder.glob(f"began-{generation}-*"))) == REPLICAS

    wait_for(
        begun,
        what=f"all ranks of generation {generation}",
        deadline_seconds=LEAD_SECONDS,
        describe=lambda: sorted(path.name for path in folder.iterdir()),
    )


def _check(job: Job, pods: dict[str, str], lasted: float) -> None:
    """No pod was lost, and the status accounts for every restart and every second."""
    wait_for(
        lambda: (world := job.status().world) and world.generation >= KILLS,
        what=f"generation {KILLS} in the job's status",
        describe=job.status,
    )
    status = job.status()
    assert status.world is not None
    assert (status.world.generation, status.attempt) == (KILLS, 0)
    assert (status.restarts, status.disruptions) == (KILLS, 0)
    blows = [generation % REPLICAS for generation in range(KILLS)]
    if len(blows) > MAX_FAILURES:  # the first is kept: it says how the trouble began
        blows = [blows[0], *blows[1 - MAX_FAILURES :]]
    assert [failure.index for failure in status.failures] == blows
    assert {failure.signal for failure in status.failures} == {9}
    assert job.uids() == pods
    counts = [
        container["restartCount"]
        for pod in job.pods()
        for container in pod["status"]["containerStatuses"]
    ]
    assert counts == [0] * REPLICAS
    books = status.goodput
    assert books is not None
    assert KILLS <= books.lost_seconds < lasted
    assert "LedWithoutOperator" in {event["reason"] for event in job.events()}
