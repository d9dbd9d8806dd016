"""Wrong flags and variables: the error names them and the remedy, and the job is not retried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ddp_trainer.exit_codes import ConfigurationError, ExitCode
from ddp_trainer.launch import main as launch
from ddp_trainer.launcher.options import LaunchOptions
from ddp_trainer.settings.environment import Environment, Placement
from ddp_trainer.settings.options import Options
from ddp_trainer.telemetry.termination import TerminationReport

from tests.trainer.support.pods import contract


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": "ssh"}, "MASTER_PORT is 'ssh': set it to a whole number"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT is 70000: set it to a number from 1 to 65535"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is 0: set it to a number at least 1"),
        ({"WORLD_SIZE": "3"}, "GROUP_WORLD_SIZE x LOCAL_WORLD_SIZE is 2 x 2"),
        ({"NODE_RANK": "2"}, "NODE_RANK 2 with LOCAL_WORLD_SIZE 2 lies beyond WORLD_SIZE 4"),
        ({"DDP_BACKEND": "mpi"}, "DDP_BACKEND is 'mpi': set it to nccl or gloo"),
        ({"DDP_ATTEMPT": "x"}, "DDP_ATTEMPT is 'x'"),
        ({"RANK": "1"}, "RANK 1 and LOCAL_RANK 1 do not fit NODE_RANK 1"),
        ({"DDP_POD_SIZES": "2;2"}, "DDP_POD_SIZES is '2;2': list the ranks of the pods"),
        ({"DDP_POD_SIZES": "2x0"}, "DDP_POD_SIZES is '2x0': list the ranks of the pods"),
        ({"DDP_POD_SIZES": "2,1"}, "the pods of DDP_POD_SIZES 2,1 have 3 ranks"),
        ({"DDP_POD_SIZES": "3,1"}, "LOCAL_WORLD_SIZE 2 is not a pod of DDP_POD_SIZES 3,1"),
        ({"DDP_POD_SIZES": "4"}, "NODE_RANK 1 with LOCAL_WORLD_SIZE 2 is not a pod of"),
    ],
)
def test_bad_environment(changes: dict[str, str], message: str) -> None:
    good = contract(node_rank=1, nodes=2, local_world_size=2) | {"RANK": "3", "LOCAL_RANK": "1"}
    assert Environment.from_env(good).rank == 3
    with pytest.raises(ConfigurationError, match=message):
        Environment.from_env(good | changes)


def test_ranks_of_unequal_pods_count_over_the_pods_before() -> None:
    sizes = {"WORLD_SIZE": "10", "GROUP_WORLD_SIZE": "4", "DDP_POD_SIZES": "4,2x3"}
    one, other = (
        Placement.from_env(contract(node_rank=rank, local_world_size=size) | sizes)
        for rank, size in ((0, 4), (2, 2))
    )
    assert [one.rank_of(local) for local in range(4)] == [0, 1, 2, 3]
    assert [other.rank_of(local) for local in range(2)] == [6, 7]
    assert [one.node_rank_of(rank) for rank in range(10)] == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]
    placed = {"RANK": "7", "LOCAL_RANK": "1"}
    assert (
        Environment.from_env(contract(node_rank=2, local_world_size=2) | sizes | placed).rank == 7
    )


def test_checkpoint_directory_is_optional() -> None:
    assert Placement.from_env(contract()).checkpoint_dir is None
    chosen = Placement.from_env(contract() | {"DDP_CHECKPOINT_DIR": "/c"})
    assert chosen.checkpoint_dir == Path("/c")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workload", "dogs"], "--workload dogs is unknown: choose from digits"),
        (["--epochs", "many"], "--epochs: invalid int value"),
        (["--epochs", "0"], "--epochs is 0: set it to 1 or more"),
        (["--lr", "-1"], "--lr is -1.0"),
        (["--epoch", "3"], "unrecognized arguments: --epoch 3"),
        (["--rendezvous-timeout-seconds", "0"], "--rendezvous-timeout-seconds is 0.0"),
        (["--evaluation-batch-size=0"], "--evaluation-batch-size is 0: set it to 1 or more"),
        (["--accumulate-steps=0"], "--accumulate-steps is 0: set it to 1 or more"),
        (["--min-lr-ratio=1.5"], "--min-lr-ratio is 1.5: set it to 1 or less"),
        (["--precision=fp8"], "--precision: invalid choice: 'fp8'"),
        (["--device-ids=0,x"], "'0,x' is not a list of whole numbers, such as 0,2"),
        (["--static-graph", "--find-unused-parameters"], "remove --find-unused-parameters"),
        (
            ["--checkpoint-timeout-seconds=900"],
            "--checkpoint-timeout-seconds is 900 and --group-timeout-seconds 600: the other ranks "
            "would give up while rank 0 may still save; lower the first, or raise the second to "
            "900 or more",
        ),
        (
            ["--checkpoint-timeout-seconds=31", "--group-timeout-seconds=30"],
            "--checkpoint-timeout-seconds is 31 and --group-timeout-seconds 30: ",
        ),
        (
            ["--heartbeat-timeout-seconds=60", "--group-timeout-seconds=30.5"],
            "--heartbeat-timeout-seconds is 60 and --group-timeout-seconds 30.5: a frozen rank "
            "would end the collectives of the others before they look for it; lower",
        ),
    ],
)
def test_bad_flags(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        Options.parse(flags)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", *[]], "no command after --"),
        (["--epochs", "3", "--", "python", "my.py"], "--epochs 3: a flag of the bundled trainer"),
        (["--max-restarts", "-1"], "--max-restarts: set it to 0 or more"),
        (["--max-reforms", "-1"], "--max-reforms is -1: set it to 0 or more"),
        (["--epochs", "0"], "--epochs is 0"),
    ],
)
def test_bad_launch(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LaunchOptions.parse(arguments)


@pytest.mark.parametrize(
    ("arguments", "missing", "message"),
    [
        (["--epochs", "0"], "", "--epochs is 0"),
        ([], "MASTER_ADDR", "MASTER_ADDR is not set"),
        (["--checkpoint-timeout-seconds=900"], "", "--group-timeout-seconds"),
    ],
)
def test_a_wrong_configuration_is_exit_code_64_and_reported(
    arguments: list[str], missing: str, message: str, tmp_path: Path
) -> None:
    log = tmp_path / "termination"
    env = {name: value for name, value in contract().items() if name != missing}
    assert launch(arguments, env | {"DDP_TERMINATION_LOG": str(log)}) == ExitCode.CONFIGURATION
    report = TerminationReport.from_json(log.read_text())
    assert report.exit_code == 64
    assert message in (report.error or "")
