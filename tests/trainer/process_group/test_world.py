"""Collective work of three ranks, a number that divides no size evenly."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from ddp_trainer.process_group.rendezvous.network import hurry_the_resolver, interface_towards

from tests.trainer.support.pods import job


def test_collectives_and_exact_evaluation_on_three_ranks(tmp_path: Path) -> None:
    program = ("-m", "tests.trainer.process_group.world_checks", str(tmp_path))
    with job(tmp_path, nodes=1, local_world_size=3) as three:
        pod = three.start(0, "--", sys.executable, *program)
        assert pod.wait() == 0, pod.log
    results = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(3)]
    others, source, lost = (rank.pop("handed over") for rank in results)
    assert others == source, "rank 0 receives the state of rank 1"
    assert source[1:] == [3, [[[2, 3, 0], [[1.5]]]]]
    assert lost[1:] == [0, []], "rank 2 keeps its own state"
    assert lost != source
    for rank in results:
        assert rank == {
            "scores": {
                f"{size} by {batch_size}": sum(i**2 for i in range(size)) / size
                for size in (1, 2, 3, 10, 700)
                for batch_size in (1, 7, 256)
            },
            "stopped": 2,
            "shared": [
                [[2.0, 2.0], [2.0, 2.0]],
                torch.arange(24.0).view(1, 2, 3, 4).tolist(),
                True,
                [11, 21],
                [31],
            ],
            "sum": [3.0, 3.0],
            "compared": [[[3, 3], 5, 0], [[3, 3], 5, 1], [[3, 3], 4.5, 1]],
            "broadcast": ["from rank 0", "from rank 1", "from rank 2"],
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
from ddp_trainer.process_group.world import GroupFormer

environment = Environment.from_env(os.environ)
world = GroupFormer(environment, group_timeout_seconds=60, heartbeat_timeout_seconds=10)
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


@pytest.mark.skipif(torch.__version__ < "2.8", reason="torch does not name gloo's threads")
def test_wrapper_that_outlives_its_group_does_not_wait_for_threads(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WRAPPER_THAT_OUTLIVES_ITS_GROUP)
    with job(tmp_path, nodes=1, local_world_size=2) as two:
        pod = two.start(0, "--", sys.executable, str(program), str(tmp_path))
        assert pod.wait() == 0, pod.log
    for rank in range(2):
        # A wait for them would hold the lock that they may need.
        assert "pt_gloo_runloop" in (tmp_path / f"rank-{rank}").read_text()


PRINTS_ITS_BATCHES = """
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
    ids=["default", "chosen"],
)
def test_evaluation_has_batches_of_the_chosen_size(
    flags: list[str], batches: list[int], tmp_path: Path
) -> None:
    (tmp_path / "prints.py").write_text(PRINTS_ITS_BATCHES)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with job(tmp_path, nodes=1, extra_environment={"PYTHONPATH": path}) as one:
        pod = one.start(0, "--workload=prints:load", "--epochs=1", "--batch-size=150", *flags)
        assert pod.wait() == 0, pod.log
    assert [int(size) for size in re.findall(r"evaluating (\d+)", pod.log)] == batches


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_loopback_is_found(address: str) -> None:
    assert interface_towards(address) == "lo"


def test_lost_dns_query_is_repeated_soon() -> None:
    environment: dict[str, str] = {}
    hurry_the_resolver(environment)
    assert environment == {"RES_OPTIONS": "timeout:1 attempts:3"}
    chosen = {"RES_OPTIONS": "use-vc"}
    hurry_the_resolver(chosen)
    assert chosen == {"RES_OPTIONS": "use-vc"}
