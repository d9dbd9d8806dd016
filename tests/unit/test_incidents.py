"""The verdict on an incident, and its row in the table."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, get_args

import pytest
from ddp_operator.api.status import DDPJobStatus

from tests.chaos.accounts import Begun
from tests.incidents.incidents import INCIDENTS
from tests.incidents.table import Column, Row, updated
from tests.incidents.verdict import Expected, Seen

FAILURE = {
    "time": "2026-01-01T00:00:00Z",
    "attempt": 0,
    "index": 1,
    "pod": "job-0-1",
    "reason": "Deleted",
    "class": "Disruption",
}


def status(**fields: object) -> DDPJobStatus:
    return DDPJobStatus.model_validate({"phase": "Succeeded", "failures": [FAILURE], **fields})


def begun(*pods: str) -> list[Begun]:
    """Return steps from 1 on, 0.5 s apart, with 5 s before the first step of a pod."""
    steps: list[Begun] = []
    now = 0.0
    for number, pod in enumerate(pods, start=1):
        now += 0.5 if not steps or steps[-1].pod == pod else 5.0
        steps.append(Begun(now, pod, number))
    return steps


SEEN = Seen(
    steps=[begun("a", "a", "b", "b")],
    last_step=4,
    phases={"b": "Succeeded"},
    new_pods=1,
    new_groups=1,
    doubles=(),
    status=status(),
)
EXPECTED = Expected(words="Deleted", new_pods=range(1, 2))


def test_expected_incident_passes() -> None:
    assert SEEN.complaints(EXPECTED) == []
    assert SEEN.seconds_without_step() == 5.0


def test_time_without_a_step_of_a_running_job_lasts_until_now() -> None:
    last = SEEN.steps[0][-1].seconds
    assert SEEN.seconds_without_step(until=last + 100) == 105.0


@pytest.mark.parametrize(
    ("seen", "complaint"),
    [
        (replace(SEEN, steps=[begun("a", "a", "b")]), "did not train each step up to 4; last: 3"),
        (replace(SEEN, steps=[begun("a", "b", "a", "b")]), "trained in turns"),
        (replace(SEEN, phases={"b": "Failed"}), "not all pods succeeded"),
        (replace(SEEN, new_pods=2), "2 new pods instead of 1"),
        (replace(SEEN, new_groups=2), "2 new groups instead of 1"),
        (replace(SEEN, doubles=["a and b"]), "two pods of one rank at once: a and b"),
        (replace(SEEN, status=status(restarts=1)), "1 charged instead of 0"),
        (replace(SEEN, status=status(failures=[])), "0 failures instead of 1"),
        (replace(SEEN, status=status(phase="Failed", message="m")), "the job is Failed: m"),
        (
            replace(SEEN, status=status(failures=[{**FAILURE, "class": "Application"}])),
            "a failure is Application",
        ),
        (
            replace(SEEN, status=status(failures=[{**FAILURE, "reason": "Error"}])),
            "a failure is Disruption, 'Error: '",
        ),
    ],
)
def test_fault_of_an_incident_is_found(seen: Seen, complaint: str) -> None:
    [text] = seen.complaints(EXPECTED)
    assert complaint in text


@pytest.mark.parametrize(
    ("steps", "complaints"),
    [
        ([1, 2, 2, 3, 4], []),
        ([1, 2, 2, 3, 3, 4], ["rank 0 trained steps more than once, again from [2, 3]"]),
        ([1, 2, 3, 2, 3, 4], ["rank 0 trained steps more than once, again from [2]"]),
    ],
)
def test_rank_may_repeat_only_the_running_step(steps: list[int], complaints: list[str]) -> None:
    seen = replace(SEEN, steps=[[Begun(0.5 * step, "a", step) for step in steps]])
    assert seen.complaints(EXPECTED) == []
    assert seen.complaints(replace(EXPECTED, keeps_steps=True)) == complaints


def lines_of(page: str) -> dict[str, str]:
    """Return the verdict and the last cell of each row, by its first one."""
    table = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {cells[0]: f"{cells[2]}, {cells[-1]}" for cells in table[2:]}


class TestTable:
    """A run changes only the cells of its results."""

    PAGE: ClassVar = "text\n<!-- written by `make incidents` -->\n\n| old |\n\n<!-- end -->\n"
    PASSED: ClassVar = [Row(incident, "passed", 5.0, 1, 0) for incident in INCIDENTS]
    ENDED: ClassVar = {
        (column, incident.name): f"{column} {len(incident.name)}"
        for incident in INCIDENTS
        if incident.others
        for column in get_args(Column)
    }

    def test_complete_run_writes_all_cells(self) -> None:
        complaints = lines_of(updated(self.PAGE, self.PASSED, self.ENDED))
        assert complaints == {
            incident.what: f"passed, {self.ENDED.get(('TrainJob', incident.name), 'not tried')}"
            for incident in INCIDENTS
        }

    def test_each_part_can_run_alone(self) -> None:
        whole = updated(self.PAGE, self.PASSED, self.ENDED)
        assert updated(updated(self.PAGE, [], self.ENDED), self.PASSED, {}) == whole
        assert updated(updated(self.PAGE, self.PASSED, {}), [], self.ENDED) == whole

    def test_only_a_complete_run_changes_the_operators_cells(self) -> None:
        whole = updated(self.PAGE, self.PASSED, self.ENDED)
        slower = [replace(row, seconds_without_step=60.0) for row in self.PASSED]
        failed = [*slower[1:], replace(slower[0], verdict="rank 0 did not train")]
        assert updated(whole, slower, {}) != whole
        assert updated(whole, failed, {}) == whole
        assert updated(whole, slower[1:], {}) == whole

    def test_new_incident_gets_its_cells(self) -> None:
        new, *others = self.PASSED
        page = updated(self.PAGE, others, {})
        assert lines_of(page)[new.incident.what].startswith("not tried, ")
        complaints = lines_of(updated(page, [new], {}))
        assert complaints[new.incident.what].startswith("passed, ")

    @pytest.mark.parametrize("column", get_args(Column))
    def test_each_outcome_of_others_has_its_cell(self, column: Column) -> None:
        whole = updated(self.PAGE, self.PASSED, self.ENDED)
        failed = {(column, INCIDENTS[0].name): "failed"}
        outcomes = {**self.ENDED, **failed}
        assert updated(whole, [], failed) == updated(whole, self.PASSED, outcomes)
        assert updated(whole, [], failed) != whole
