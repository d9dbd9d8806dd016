"""Complete steps and dead steps."""

from __future__ import annotations

import pytest
from ddp_trainer.launcher.memory.completeness import Completeness
from ddp_trainer.launcher.memory.protocol.messages import Held, KeysReport
from ddp_trainer.memory.volume import LARGEST_STEP


def held(step: int, *, replicated: bool = False, copied: bool = True, size: int = 10) -> Held:
    return Held(step=step, replicated=replicated, copied=copied, bytes=size)


def report(node_rank: int, *steps: Held, asked: int | None = None, refusal: str = "") -> KeysReport:
    newest = max((one.step for one in steps), default=None)
    return KeysReport(
        job_uid="7d1f",
        attempt=0,
        generation=1,
        node_rank=node_rank,
        asked=newest if asked is None else asked,
        held=steps,
        refusal=refusal,
    )


def after(nodes: int, *reports: KeysReport) -> Completeness:
    found = Completeness(nodes)
    for one in reports:
        found.note(one)
    return found


def test_a_step_is_complete_once_all_pods_hold_it_and_its_copies() -> None:
    group = Completeness(2)
    assert not group.note(report(0, held(5, size=7)))
    assert not group.note(report(1, held(5, copied=False, size=9)))
    assert group.note(report(1, held(5, size=9)))
    assert (group.complete, group.bytes) == (5, 9)
    assert not group.note(report(1, held(5)))


def test_a_replicated_step_needs_no_copies() -> None:
    steps = [held(5, replicated=True, copied=False)]
    assert after(2, report(0, *steps), report(1, *steps)).complete == 5


def test_a_step_that_is_sharded_in_one_pod_alone_is_dead() -> None:
    group = after(2, report(0, held(5)), report(1, held(5, replicated=True)))
    assert (group.complete, group.dead()) == (None, (5,))


def test_the_newest_complete_step_counts_and_none_is_complete_later() -> None:
    both = [held(5), held(6)]
    group = after(2, report(0, *both), report(1, *both))
    assert group.complete == 6
    group.note(report(0, held(5)))
    group.note(report(1, held(5)))
    assert (group.complete, group.dead()) == (6, ())


def test_a_step_that_a_pod_skipped_is_dead() -> None:
    group = after(3, report(0, held(5)), report(1, asked=4), report(2))
    assert group.dead() == (), "the others may still save it"
    group.note(report(1, asked=5))
    assert group.dead() == (5,)
    group.note(report(1, held(6), asked=6))
    assert group.dead() == (5,), "6 may be complete yet"
    group.note(report(0, asked=6))
    assert group.dead() == (6,)


def test_an_old_report_makes_no_dead_step_complete() -> None:
    old = report(1, asked=4)
    group = after(2, report(0, held(5)), report(1, asked=5), old)
    assert group.complete is None
    group.note(report(0, held(5)))
    assert group.complete is None


def test_sharded_steps_are_dead_once_their_copies_go_to_other_pods() -> None:
    group = after(2, report(0, held(5)), report(1, held(5)), report(0, held(5), held(6)))
    group.give_up()
    assert (group.complete, group.dead()) == (5, (6,))
    assert not group.note(report(1, held(6)))
    assert group.dead() == (6,), "also for a pod that holds it later"
    for node_rank in range(2):
        group.note(report(node_rank, held(7)))
    assert (group.complete, group.dead()) == (7, ())


def test_replicated_steps_do_not_depend_on_the_places_of_copies() -> None:
    group = after(2, report(0, held(5, replicated=True)))
    group.give_up()
    assert group.dead() == ()
    assert group.note(report(1, held(5, replicated=True)))


def test_pods_that_were_never_asked_are_missing() -> None:
    group = Completeness(3)
    assert group.missing() is None
    group.note(report(1, held(5)))
    assert group.missing() == (5, [0, 2])
    group.note(report(0, asked=6))
    assert group.missing() == (5, [2])
    group.note(report(2, asked=5))
    assert group.missing() is None


def test_the_refusal_of_the_first_pod_is_named() -> None:
    group = after(3, report(2, refusal="full"), report(1, refusal="no room"), report(0))
    assert group.refusal == "node rank 1: no room"
    group.note(report(1))
    group.note(report(2, refusal="x" * 200))
    assert len(group.refusal) == 200


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (report(0, *map(held, range(20))), "held"),
        (report(0, asked=LARGEST_STEP + 1), "step"),
        (report(0, held(LARGEST_STEP + 1)), "step"),
        (report(0, refusal="x" * 201), "refusal"),
    ],
)
def test_a_report_has_limits(wrong: KeysReport, field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: at most"):
        wrong.check()
