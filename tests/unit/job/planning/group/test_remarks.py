"""Remarks of rank 0's launcher on ranks that cannot meet."""

from dataclasses import replace

from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.group.remarks import present
from ddp_operator.job.planning.plan import plan
from ddp_protocol.world import LauncherStatus

from tests.unit.job.builders import event_reasons, later, stored
from tests.unit.job.planning.group.test_in_place import LISTENS, in_place

TEXT = "rank 0 listens on port 12355 and reaches it at localhost"


def remarking(text: str) -> LauncherStates:
    status = LauncherStatus(number=2, generation=0, scope="InPlace", remark=text)
    return replace(LISTENS, scope="InPlace", leader=status)


def test_first_remark_of_an_attempt_is_noted_and_restarts_nothing() -> None:
    job, pods = in_place()
    planned = plan(job, pods, later(50), launchers=remarking(TEXT))
    assert event_reasons(planned) == ["WaitsAtLocalhost"]
    assert (planned.events[0].message, planned.events[0].warning) == (TEXT, True)
    assert not planned.delete
    job = stored(job, planned)
    assert present(job.status) == TEXT
    assert job.status.restarts == 0
    assert not plan(job, pods, later(51), launchers=remarking("another")).decided
    assert present(job.status.model_copy(update={"attempt": 1})) == ""


def test_remark_is_made_printable_and_short() -> None:
    job, pods = in_place()
    planned = plan(job, pods, later(50), launchers=remarking("a\x1b[31m\nb" + "c" * 500))
    text = planned.status.bookkeeping.remark
    assert len(text) == 200
    assert text.isprintable()


def test_no_remark_is_not_noted() -> None:
    job, pods = in_place()
    assert not plan(job, pods, later(50), launchers=remarking("")).decided
