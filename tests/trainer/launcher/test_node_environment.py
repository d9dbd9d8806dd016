"""A node's script sets NCCL's variables before ranks start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from ddp_trainer.exit_codes import ExitCode
from ddp_trainer.launch import main as launch
from ddp_trainer.launcher.node_environment import NodeEnvironmentError, with_node_environment
from ddp_trainer.telemetry.termination import TerminationReport

from tests.trainer.support.pods import contract, job

SCRIPT = """
echo "a script may say something"
export NCCL_NET=gIB NCCL_BUFFSIZE=8388608
export LD_LIBRARY_PATH="/usr/local/gib/lib64:${LD_LIBRARY_PATH}"
NCCL_TUNER_CONFIG_PATH="${NCCL_LIB_DIR}/with blanks
and lines"
"""


def environment(script: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "DDP_NCCL_ENV_SCRIPT": str(script), **more}


def test_variables_of_the_script_are_used(tmp_path: Path) -> None:
    script = tmp_path / "set_nccl_env.sh"
    script.write_text(SCRIPT)
    env = environment(script, LD_LIBRARY_PATH="/lib64", NCCL_LIB_DIR="/nccl", NCCL_BUFFSIZE="1")
    assert with_node_environment(env) == {
        **env,
        "NCCL_NET": "gIB",
        "NCCL_TUNER_CONFIG_PATH": "/nccl/with blanks\nand lines",
        "LD_LIBRARY_PATH": "/usr/local/gib/lib64:/lib64",
    }


def test_without_a_script_nothing_changes() -> None:
    env = {"PATH": "/bin", "NCCL_DEBUG": "INFO"}
    assert with_node_environment(env) is env


@pytest.mark.parametrize("text", [None, "exit 3", "return 1"])
def test_a_script_that_cannot_be_sourced_is_named(tmp_path: Path, text: str | None) -> None:
    script = tmp_path / "set_nccl_env.sh"
    if text is not None:
        script.write_text(text)
    with pytest.raises(NodeEnvironmentError, match=f"DDP_NCCL_ENV_SCRIPT: cannot source {script}"):
        with_node_environment(environment(script))


def test_node_without_the_script_is_a_failure_that_is_retried(tmp_path: Path) -> None:
    """The next attempt may run on a node that has it."""
    log = tmp_path / "termination"
    env = {**contract(), **environment(tmp_path / "none.sh"), "DDP_TERMINATION_LOG": str(log)}
    assert launch([], env) == ExitCode.FAILURE
    assert "none.sh" in (TerminationReport.from_json(log.read_text()).error or "")


def test_ranks_have_them(tmp_path: Path) -> None:
    script, rank = tmp_path / "set_nccl_env.sh", tmp_path / "rank.py"
    script.write_text(SCRIPT)
    rank.write_text("import os; print('rank has', os.environ['NCCL_NET'])")
    variables = {"DDP_NCCL_ENV_SCRIPT": str(script)}
    with job(tmp_path / "job", nodes=1, extra_environment=variables) as one:
        [pod] = one.start_all("--", sys.executable, str(rank))
        assert pod.wait() == 0, pod.log
        assert "rank has gIB" in pod.log
        assert "sets NCCL_BUFFSIZE, NCCL_NET, NCCL_TUNER_CONFIG_PATH" in pod.log
