"""What several ranks do together, on three ranks that divide nothing evenly."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from ddp_trainer.membership.network import hurry_the_resolver, interface_towards

from tests.trainer.pods import job

RANK_PROGRAM = """
import json, os, pathlib, sys, threading
import ddp_trainer.collectives.group, torch
from ddp_trainer.settings.environment import Environment
from ddp_trainer.system.logs import end_process
from ddp_trainer.loop.train import evaluate
from ddp_trainer.workloads.base import Samples, Workload
from ddp_trainer.membership.world import World


def workload(size):
    samples = Samples(inputs=torch.arange(size).float(), targets=torch.ones(size))
    return Workload(
        train=samples,
        test=samples,
        model=torch.nn.Identity,
        loss=lambda outputs, targets: outputs.mean(),
        # A different score for every sample: one left out or counted twice changes the mean.
        score=lambda outputs, targets: outputs**2,
    )


evaluated = 0


def evaluate_until_rank_1_is_told_to_stop(group):
    def told():  # asked once before each of the three batches
        global evaluated
        evaluated += 1
        return group.rank == 1 and evaluated == 2

    score = evaluate(
        group, torch.nn.Identity(), workload(1800), batch_size=256, told_to_stop=told
    )
    return [score, evaluated]


def shared_by_rank_1(group):
    tensors = [
        torch.full((2, 2), 1.0 + group.rank).t(),
        torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
        * (group.rank == 1),
        torch.tensor(group.rank == 1),
        torch.tensor([10, 20]) + group.rank,
        torch.tensor([30]) + group.rank,
    ]
    group.share(*tensors, source=1)
    return [tensor.tolist() for tensor in tensors]


def large(group, source):
    data = None
    if source < 2:  # of rank 2, nothing; of the others, more than two parts
        data = memoryview(bytearray(str(group.rank).encode() * (1000 + group.rank)))
    return bytes(group.broadcast_large(data, source=source)).decode()


ddp_trainer.collectives.group._LARGE_PART_BYTES = 400
environment = Environment.from_env(os.environ)
world = World(environment, group_timeout_seconds=60, heartbeat_timeout_seconds=10)
with world.formed(timeout_seconds=60) as group:
    result = {
        "scores": {
            f"{size} by {batch_size}": evaluate(
                group, torch.nn.Identity(), workload(size), batch_size=batch_size
            )
            for size in (1, 2, 3, 10, 700)
            for batch_size in (1, 7, 256)
        },
        "stopped": evaluate_until_rank_1_is_told_to_stop(group),
        "shared": shared_by_rank_1(group),
        "sum": group.sum(1.0, group.rank),
        "broadcast": [
            group.broadcast(f"from rank {source}".encode() * (group.rank == source), source=source)
            .decode()
            for source in range(group.size)
        ],
        "large": [large(group, source) for source in range(group.size)],
        "nothing": group.broadcast(None).decode(),
        "gathered": [part.decode() for part in group.gather(b"x" * (3 * group.rank + 1))],
    }
names = {"heartbeat", "answers"}
result["threads"] = [thread.name for thread in threading.enumerate() if thread.name in names]
pathlib.Path(sys.argv[1], f"rank-{environment.rank}").write_text(json.dumps(result))
end_process(0)  # threads of the group could abort the interpreter's shutdown
"""


def test_collectives_and_exact_evaluation_on_three_ranks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RANK_PROGRAM)
    with job(tmp_path, nodes=1, local_world_size=3) as three:
        pod = three.start(0, "--", sys.executable, str(program), str(tmp_path))
        assert pod.wait() == 0, pod.log
    for rank in range(3):
        assert json.loads((tmp_path / f"rank-{rank}").read_text()) == {
            "scores": {
                f"{size} by {batch_size}": sum(i**2 for i in range(size)) / size
                for size in (1, 2, 3, 10, 700)
                for batch_size in (1, 7, 256)
            },
            "stopped": [None, 2],
            "shared": [
                [[2.0, 2.0], [2.0, 2.0]],
                torch.arange(24.0).view(1, 2, 3, 4).tolist(),
                True,
                [11, 21],
                [31],
            ],
            "sum": [3.0, 3.0],
            "broadcast": ["from rank 0", "from rank 1", "from rank 2"],
            "large": ["0" * 1000, "1" * 1001, ""],
            "nothing": "",
            "threads": [],
            "gathered": ["x", "x" * 4, "x" * 7],
        }


WRAPPER_THAT_OUTLIVES_ITS_GROUP = """
import contextlib, os, pathlib, sys
import torch
import torch._dynamo  # imported in a group, as by the first wrapper, it would hold it for ever
from ddp_trainer.settings.environment import Environment
from ddp_trainer.system.logs import end_process
from ddp_trainer.membership.world import World

environment = Environment.from_env(os.environ)
world = World(environment, group_timeout_seconds=60, heartbeat_timeout_seconds=10)
with world.formed(timeout_seconds=60) as group:
    wrapper = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
del wrapper, world
threads = []
for file in pathlib.Path("/proc/self/task").glob("*/comm"):
    with contextlib.suppress(OSError):  # a thread of another kind that has just ended
        threads.append(file.read_text().strip())
pathlib.Path(sys.argv[1], f"rank-{group.rank}").write_text(" ".join(sorted(threads)))
end_process(0)
"""


def test_a_wrapper_that_outlives_its_group_does_not_wait_for_its_threads(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WRAPPER_THAT_OUTLIVES_ITS_GROUP)
    with job(tmp_path, nodes=1, local_world_size=2) as two:
        pod = two.start(0, "--", sys.executable, str(program), str(tmp_path))
        assert pod.wait() == 0, pod.log
    for rank in range(2):
        # Had it waited for them, it would have done so with the lock that they may wait for.
        assert "pt_gloo_runloop" in (tmp_path / f"rank-{rank}").read_text()


TELLS_ITS_BATCHES = """
from dataclasses import replace
from ddp_trainer.workloads import digits

def load():
    workload = digits.load()
    def score(outputs, targets):
        print(f"evaluating {len(targets)}", flush=True)
        return workload.score(outputs, targets)
    return replace(workload, score=score)
"""


@pytest.mark.parametrize(
    ("flags", "batches"),
    [([], [150, 150, 59]), (["--evaluation-batch-size=200"], [200, 159])],
    ids=["as in training", "chosen"],
)
def test_the_batches_of_an_evaluation(flags: list[str], batches: list[int], tmp_path: Path) -> None:
    (tmp_path / "tells.py").write_text(TELLS_ITS_BATCHES)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with job(tmp_path, nodes=1, extra_environment={"PYTHONPATH": path}) as one:
        pod = one.start(0, "--workload=tells:load", "--epochs=1", "--batch-size=150", *flags)
        assert pod.wait() == 0, pod.log
    assert [int(size) for size in re.findall(r"evaluating (\d+)", pod.log)] == batches


def test_digits_are_learned(tmp_path: Path) -> None:
    with job(tmp_path) as digits:
        pods = digits.start_all()
        for pod in pods:
            assert pod.wait() == 0, pod.log
        for rank, pod in enumerate(pods):
            assert pod.message["accuracy"] >= 0.97
            assert pod.message["step"] == pod.message["totalSteps"] == 276
            assert pod.message["rank"] == rank
            assert pod.message["exitCode"] == 0
            assert 0 < pod.message["loss"] < 0.5
        assert "step-00000276" in pods[0].message["checkpoint"]["path"]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_loopback_is_found(address: str) -> None:
    assert interface_towards(address) == "lo"


def test_a_lost_question_to_dns_is_asked_again_soon() -> None:
    environment: dict[str, str] = {}
    hurry_the_resolver(environment)
    assert environment == {"RES_OPTIONS": "timeout:1 attempts:3"}
    chosen = {"RES_OPTIONS": "use-vc"}
    hurry_the_resolver(chosen)
    assert chosen == {"RES_OPTIONS": "use-vc"}
