"""What pods are told of their place in the group, and what is no such thing."""

from dataclasses import replace
from pathlib import Path

import pytest
from ddp_trainer.process_group.assignment import Assignment, AssignmentFile
from ddp_trainer.telemetry.wire import to_json

PLACE = Assignment(
    job_uid="uid", attempt=1, generation=4, node_rank=2, nodes=4, master_addr="j-1-0.j"
)


def test_a_place_travels_as_json_and_through_the_file(tmp_path: Path) -> None:
    file = AssignmentFile(tmp_path / "status.json")
    assert file.read() is None
    for place in (PLACE, replace(PLACE, node_rank=None, master_address="10.0.0.1", start=False)):
        file.write(place)
        assert file.read() == place == Assignment.parse(to_json(place).encode())


@pytest.mark.parametrize(
    "wrong",
    [
        replace(PLACE, generation=-1),
        replace(PLACE, attempt=-1),
        replace(PLACE, node_rank=4),
        replace(PLACE, node_rank=-1),
        replace(PLACE, nodes=0, node_rank=None),
        replace(PLACE, master_addr=""),
        replace(PLACE, master_addr="j" * 300),
        replace(PLACE, master_address="elsewhere"),
        replace(PLACE, grace_seconds=-1),
        replace(PLACE, grace_seconds=10_000),
    ],
)
def test_what_cannot_be_a_place_is_refused(wrong: Assignment, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Assignment.parse(to_json(wrong).encode())
    file = AssignmentFile(tmp_path / "status.json")
    file.write(wrong)
    assert file.read() is None  # a rank goes on with the place that it has


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"generation": "4"}', b"\xff"])
def test_what_is_no_document_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Assignment.parse(text)
