"""Explanations of a rank's last words by its pod's variables and files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from ddp_trainer.launcher.remarks import incomplete_checkpoint, waited_at_localhost

from tests.trainer.support.pods import job

TIMED_OUT = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 30000ms while "
    "trying to connect to ({host}, 12355)."
)
NO_METADATA = (
    "AssertionError: metadata is None; global metadata read failed: [Errno 2] No such file or "
    "directory: '{folder}/.metadata'"
)
SCRIPT = """
import os
raise OSError(2, "No such file or directory", os.environ["CHECKPOINT"] + "/.metadata")
"""


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_rank_that_waits_at_its_own_pod_gets_advice(host: str) -> None:
    said = waited_at_localhost(TIMED_OUT.format(host=host), "a-0-0.a")
    assert said.startswith(
        f"it waited at {host} port 12355, its own pod, but rank 0 is at a-0-0.a;"
    )
    assert len(said) <= 200


def test_rank_that_waits_at_the_right_address_gets_no_remark() -> None:
    assert waited_at_localhost(TIMED_OUT.format(host="a-0-0.a"), "a-0-0.a") == ""
    assert waited_at_localhost(TIMED_OUT.format(host="localhost"), "localhost") == ""
    assert waited_at_localhost("localhost", "a-0-0.a") == ""


def test_incomplete_checkpoint_names_the_newest_complete_one(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        (tmp_path / f"step-{step}").mkdir()
    for step, age in ((1, 100), (2, 10)):
        file = tmp_path / f"step-{step}" / ".metadata"
        file.touch()
        os.utime(file, (2000 - age, 2000 - age))
    said = incomplete_checkpoint(NO_METADATA.format(folder=tmp_path / "step-3"))
    assert said.startswith(f"checkpoint {tmp_path}/step-3 is incomplete: no .metadata")
    assert f"load {tmp_path}/step-2, the newest complete one" in said
    gone = incomplete_checkpoint(NO_METADATA.format(folder=tmp_path / "step-9"))
    assert gone.startswith(f"checkpoint {tmp_path}/step-9 does not exist")


def test_no_complete_checkpoint_is_said(tmp_path: Path) -> None:
    said = incomplete_checkpoint(NO_METADATA.format(folder=tmp_path / "a" / "step-3"))
    assert said.endswith("none beside it is")
    assert incomplete_checkpoint("No such file or directory: 'train.csv'") == ""


def test_report_of_a_script_has_the_remark(tmp_path: Path) -> None:
    environment = {"CHECKPOINT": str(tmp_path / "step-3")}
    with job(tmp_path, nodes=1, extra_environment=environment) as scripts:
        (tmp_path / "script.py").write_text(SCRIPT)
        pod = scripts.start(0, "--", sys.executable, str(tmp_path / "script.py"))
        assert pod.wait() == 1
        assert f"checkpoint {tmp_path}/step-3 does not exist" in pod.message["error"].split("\n")[0]
