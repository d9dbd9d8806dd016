"""The examples run as on their page, and fail if a result is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_operator.api.job import DDPJob
from ddp_trainer.launcher.options import LaunchOptions

from tests.good_manifests import Json
from tests.trainer.support.pods import DEADLINE_SECONDS, job

FOLDER = Path(__file__).parents[3] / "trainer-image" / "examples"
NAMES = sorted(path.name for path in FOLDER.glob("*.py"))
IN_THE_IMAGE = "/project/examples/"


NO_SHUTDOWN = """
import atexit, os
atexit.register(lambda: os._exit(9) if "RANK" in os.environ else None)
"""


def without_shutdown(folder: Path) -> dict[str, str]:
    """Return variables with which a rank fails if it reaches the interpreter's shutdown.

    There, gloo's threads sometimes abort or hang a rank.
    """
    (folder / "sitecustomize.py").write_text(NO_SHUTDOWN)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def launched(example: str, folder: Path, *flags: str, **shape: Any) -> list[str]:
    """Run an example in pods; return their logs."""
    environment = without_shutdown(folder)  # which Python reads when it starts
    with job(folder, imports_torch=True, extra_environment=environment, **shape) as started:
        pods = started.start_all("--", sys.executable, str(FOLDER / example), *flags)
        for pod in pods:
            assert pod.wait() == 0, pod.log
        return [pod.log for pod in pods]


def by_itself(example: str, folder: Path) -> str:
    """Run an example that starts its own ranks; return its output."""
    foreign = re.compile(r"RANK$|WORLD_SIZE|MASTER_|DDP_|PET_|TORCHELASTIC_")
    env = {name: value for name, value in os.environ.items() if not foreign.search(name)}
    done = subprocess.run(
        [sys.executable, str(FOLDER / example)],
        env={**env, "OMP_NUM_THREADS": "1", **without_shutdown(folder)},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_collectives_on_three_ranks(tmp_path: Path) -> None:
    (log,) = launched("collectives.py", tmp_path, nodes=1, local_world_size=3)
    assert re.findall(r"^(\S+) +(\[.*\])$", log, re.M) == [
        ("send/recv", "[0]"),
        ("reduce", "[3.0]"),
        ("all_reduce", "[2]"),
        ("scatter", "[0.0]"),
        ("gather", "[0.0, 1.0, 2.0]"),
        ("broadcast", "[2]"),
        ("all_gather", "[0.0, 1.0, 2.0]"),
        ("ring", str([3.0 * i + 3 for i in range(10)])),
    ]


def test_groups_of_two_nodes_with_two_ranks_each(tmp_path: Path) -> None:
    first, _ = launched("groups.py", tmp_path, nodes=2, local_world_size=2)
    assert "nodes [[0, 1], [2, 3]], across [[0, 2], [1, 3]]" in first


def test_three_ways_of_averaging_agree_to_the_bit(tmp_path: Path) -> None:
    (log,) = launched("averaging.py", tmp_path, nodes=1, local_world_size=2)
    for name in ("rank 0", "hooks", "DDP"):
        assert log.count(f"{name}: differs from averaging by hand by 0.0e+00") == 2


def test_one_loop_from_one_process_to_the_launcher(tmp_path: Path) -> None:
    assert re.findall(
        r"^([\w. ]+): (?:2 ranks, differs)?", by_itself("single_to_multi.py", tmp_path), re.M
    ) == [
        "one process",
        "spawn",
        "torchrun",
        "ddp_trainer.launch",
    ]


def test_all_init_methods(tmp_path: Path) -> None:
    assert by_itself("init_methods.py", tmp_path).splitlines() == [
        "env://, set by RANK and WORLD_SIZE: a group of 2 ranks",
        "tcp://, set by RANK and WORLD_SIZE: a group of 2 ranks",
        "file://, set by RANK and WORLD_SIZE: a group of 2 ranks",
        "env://, set by torchrun: a group of 2 ranks",
    ]


def test_the_file_method_in_pods(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    logs = launched("init_methods.py", tmp_path, "file", nodes=2)
    assert "file://, set by RANK and WORLD_SIZE: a group of 2 ranks" in logs[0]


def test_nodes_with_unequal_numbers_of_devices(tmp_path: Path) -> None:
    assert sorted(by_itself("devices.py", tmp_path).splitlines()) == [
        "rank 0: local rank 0 of 2, cpu",
        "rank 1: local rank 1 of 2, cpu",
        "rank 2: local rank 0 of 1, cpu",
    ]


SABOTAGE = """
import runpy, sys
import torch
from torch import distributed as dist
from torch.nn import parallel

right = dist.all_reduce


def wrong(tensor, *args, **kwargs):
    tensor *= 2
    return right(tensor, *args, **kwargs)


dist.all_reduce = wrong
parallel.DistributedDataParallel = lambda model, device_ids=None: model
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:  # threads of a group that is alive may abort a process that ends in an error
    if dist.is_initialized():
        dist.destroy_process_group()
"""


nightly = partial(pytest.param, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    ("example", "complaint"),
    [
        ("collectives.py", "all_reduce gave [2.0], not [1]"),
        ("single_to_multi.py", "parameters differ by"),
        nightly("averaging.py", "differs from averaging by hand"),
        nightly("devices.py", "Tensor-likes are not close"),
        nightly("groups.py", "sum over the node is 2, not 1"),
        nightly("init_methods.py", "env: 2 ranks with sum 2"),
    ],
)
def test_examples_notice_wrong_results(example: str, complaint: str, tmp_path: Path) -> None:
    program = tmp_path / "sabotage.py"
    program.write_text(SABOTAGE)
    with job(tmp_path, nodes=1, local_world_size=2) as started:
        pod = started.start(0, "--", sys.executable, str(program), str(FOLDER / example))
        assert pod.wait() == 1, pod.log
        assert complaint in pod.log


def test_examples_are_short() -> None:
    assert len(NAMES) == 6
    for name in NAMES:
        assert len((FOLDER / name).read_text().splitlines()) <= 80, name


def page_manifests() -> list[Json]:
    """Return the DDPJobs of the examples' page."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", (FOLDER / "README.md").read_text(), re.M | re.S)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def test_the_page_has_a_job_for_each_example() -> None:
    shown: set[str] = set()
    for manifest in page_manifests():
        parsed = DDPJob.parse(
            {
                **manifest,
                "metadata": {
                    **manifest["metadata"],
                    "namespace": "default",
                    "uid": "uid",
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                },
            }
        )
        (container,) = parsed.spec.template["spec"]["containers"]
        command = container.get("command") or LaunchOptions.parse(container["args"]).command
        (script,) = [part for part in command if part.startswith(IN_THE_IMAGE)]
        shown.add(script.removeprefix(IN_THE_IMAGE))
    assert sorted(shown) == NAMES
