"""Processes that restart in their pods, after a failure and after the loss of another pod."""

from __future__ import annotations

import pytest

from tests.e2e.jobs import Job, force_delete, script_job
from tests.e2e.kubectl import Kubectl, wait_for
from tests.e2e.test_any_image import launched

SCRIPT = """
import os, sys, time

rank, generation = os.environ["RANK"], os.environ["DDP_GENERATION"]
print(f"rank {rank} of generation {generation}")
while not os.path.exists(f"/checkpoints/end-{generation}"):
    time.sleep(0.05)
sys.exit(7 if (rank, generation) == ("3", "0") else 0)
"""


def end(job: Job, pod: str, generation: int) -> None:
    job.kubectl.run("exec", pod, "--", "touch", f"/checkpoints/end-{generation}")


def begun(job: Job, generation: int, *pods: str) -> None:
    """Wait for all ranks of a generation."""
    for node, pod in enumerate(pods):
        for local_rank in (0, 1):
            job.log_with(pod, f"rank {2 * node + local_rank} of generation {generation}")


def test_processes_restart_and_pods_stay(shared: Kubectl) -> None:
    name = "in-place"
    manifest = launched(name, ["python3", "-c", SCRIPT])
    manifest["spec"]["restart"] = {"scope": "Auto"}
    shared.apply(manifest)
    job = Job(shared, name)
    first, second = f"{name}-0-0", f"{name}-0-1"
    begun(job, 0, first, second)
    before = job.uids()
    job.wait_until_launcher_answers()
    end(job, second, 0)
    begun(job, 1, first, second)
    assert job.uids() == before
    status = job.status()
    [failure] = status.failures
    assert (failure.pod, failure.rank, failure.exit_code) == (second, 3, 7)
    assert failure.action == "RestartInPlace"

    force_delete(job, first)  # rank 0's: the operator follows its launcher
    begun(job, 2, f"{first}-r1", second)
    assert job.uids()[second] == before[second]
    for pod in (f"{first}-r1", second):
        end(job, pod, 2)
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (0, 1, 1)
    assert status.world is not None
    assert (status.world.generation, status.world.members) == (2, "0-1")


COLLECTIVE = """
import os, sys, time
import torch
from torch import distributed as dist

rank, generation = int(os.environ["RANK"]), os.environ["DDP_GENERATION"]
dist.init_process_group("gloo")
for step in range(40):
    try:
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == dist.get_world_size()
    except RuntimeError:
        if rank == 0:
            time.sleep(3)  # as if it saved, while its store still answers
        raise
    if (rank, step, generation) == (1, 20, "0"):
        os._exit(3)
    time.sleep(0.02)
print(f"rank {rank} is done in generation {generation}")
"""


@pytest.fixture(scope="module", autouse=True)
def collective(shared: Kubectl) -> Job:
    """A plain torch script that nobody disturbs, so it runs beside the other jobs. Its old rank 0
    takes three seconds to end.
    """
    name = "in-place-torch"
    command = "python -m ddp_trainer.launch -- python /tmp/script.py"
    restart = {"scope": "InPlace", "maxRestarts": 1}
    shared.apply(script_job(name, COLLECTIVE, command, replicas=3, restart=restart))
    return Job(shared, name)


def test_new_processes_meet_none_of_the_old_generation(collective: Job) -> None:
    job, name = collective, collective.name
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (0, 1, 0)
    assert len(status.failures) == 1
    for index in range(3):
        job.log_with(f"{name}-0-{index}", f"rank {index} is done in generation 1")


SNAPSHOT = """
import datetime, json, os, time
import torch
from torch import distributed as dist

path = os.environ["DDP_CHECKPOINT_DIR"] + "/snapshot.json"
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
rank, first = dist.get_rank(), 0
if os.path.exists(path):
    first = json.load(open(path))["epoch"]
print(f"rank {rank} begins at epoch {first}")
for epoch in range(first, 30):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.3)
    if rank == 0:
        with open(path + ".new", "w") as file:
            json.dump({"epoch": epoch + 1}, file)
        os.replace(path + ".new", path)
    print(f"rank {rank} has done epoch {epoch}")
dist.barrier()
"""


def test_checkpoint_in_one_pod_alone_restarts_the_gang(
    shared: Kubectl,
) -> None:
    """Rank 0 saves, all ranks load what they find, and no volume is shared."""
    name = "own-disk"
    command = "python -m ddp_trainer.launch -- python /tmp/script.py"
    restart = {"maxRestarts": 1}
    shared.apply(script_job(name, SNAPSHOT, command, restart=restart))
    job = Job(shared, name)
    job.wait_until_launcher_answers()
    job.log_with(f"{name}-0-0", "rank 0 has done epoch 3")
    wait_for(
        lambda: job.status().bookkeeping.saved_in_pod == 0,
        what="the launcher's word of a checkpoint",
    )
    force_delete(job, f"{name}-0-1")
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (1, 0, 1)
    [failure] = status.failures
    assert failure.action == "RestartGang"
    for index in range(2):
        log = job.log_with(f"{name}-1-{index}", "has done epoch 29")
        assert f"rank {index} begins at epoch 0" in log
    assert "CheckpointInPod" in {event["reason"] for event in job.events()}
