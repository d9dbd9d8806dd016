"""Assignments of pods: valid ones are stored and read, others are refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from ddp_protocol.message import to_json
from ddp_trainer.process_group.assignment import Assignment, AssignmentFile
from ddp_trainer.process_group.current_assignment import CurrentAssignment
from ddp_trainer.settings.environment import Environment

from tests.trainer.support.pods import contract

ASSIGNMENT = Assignment(
    job_uid="uid", attempt=1, generation=4, node_rank=2, nodes=4, master_addr="j-1-0.j"
)


def test_assignment_survives_json_and_its_file(tmp_path: Path) -> None:
    file = AssignmentFile(tmp_path / "status.json")
    assert file.read() is None
    for assignment in (
        ASSIGNMENT,
        replace(ASSIGNMENT, node_rank=None, master_address="10.0.0.1", start=False),
    ):
        file.write(assignment)
        assert file.read() == assignment == Assignment.read(to_json(assignment).encode())


@pytest.mark.parametrize(
    "wrong",
    [
        replace(ASSIGNMENT, generation=-1),
        replace(ASSIGNMENT, attempt=-1),
        replace(ASSIGNMENT, node_rank=4),
        replace(ASSIGNMENT, node_rank=-1),
        replace(ASSIGNMENT, nodes=0, node_rank=None),
        replace(ASSIGNMENT, master_addr=""),
        replace(ASSIGNMENT, master_addr="j" * 300),
        replace(ASSIGNMENT, master_address="elsewhere"),
        replace(ASSIGNMENT, grace_seconds=-1),
        replace(ASSIGNMENT, grace_seconds=10_000),
    ],
)
def test_an_invalid_assignment_is_refused(wrong: Assignment, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Assignment.read(to_json(wrong).encode())
    file = AssignmentFile(tmp_path / "status.json")
    file.write(wrong)
    assert file.read() is None  # a rank continues with its present assignment


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"generation": "4"}', b"\xff"])
def test_invalid_document_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Assignment.read(text)


def test_order_for_copies_is_that_of_the_present_group(tmp_path: Path) -> None:
    env = {**contract(nodes=2), "RANK": "0", "LOCAL_RANK": "0", "DDP_GENERATION": "4"}
    environment = Environment.from_env(env)
    file = AssignmentFile(tmp_path / "status.json")
    current = CurrentAssignment(environment, file)
    assert current.copy_order() == ""
    own = replace(ASSIGNMENT, job_uid="7d1f", attempt=0, node_rank=0, nodes=2)
    file.write(replace(own, copy_order="1,0"))
    assert current.copy_order() == "1,0"
    assert not current.is_outdated(), "the group stays"
    file.write(replace(own, copy_order="0-1"))
    assert current.copy_order() == "0-1"
    file.write(replace(own, generation=5, copy_order="1,0"))
    assert current.copy_order() == "", "that order is for the next group"
    current.follow()
    assert current.copy_order() == "1,0"
