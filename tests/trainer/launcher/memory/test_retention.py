"""The snapshots that a pod keeps."""

from __future__ import annotations

from ddp_trainer.launcher.memory.retention import Retention
from ddp_trainer.memory.volume import Key

KEYS = [Key(1, 10), Key(1, 20), Key(2, 5), Key(2, 6)]


def kept(retention: Retention) -> list[Key]:
    return [key for key in KEYS if retention.keeps(key)]


def test_everything_stays_until_the_restore_is_decided() -> None:
    begun = Retention(generation=1, complete=None).begins(2)
    assert kept(begun) == KEYS
    assert [key for key in KEYS if begun.is_pending(key)] == KEYS[2:]


def test_of_earlier_generations_only_the_resumed_step_stays() -> None:
    begun = Retention(generation=2)
    assert kept(begun.resumes(Key(1, 10))) == [Key(1, 10), Key(2, 5), Key(2, 6)]
    assert kept(begun.resumes(None)) == [Key(2, 5), Key(2, 6)]


def test_complete_step_that_is_not_restored_stays_for_the_next_restart() -> None:
    begun = Retention(generation=1, complete=Key(1, 20)).begins(2).resumes(None)
    assert kept(begun) == [Key(1, 20), Key(2, 5), Key(2, 6)]


def test_lost_step_makes_room_for_the_resumed_one() -> None:
    begun = Retention(generation=1, complete=Key(1, 20)).begins(2).resumes(Key(1, 10))
    assert kept(begun) == [Key(1, 10), Key(2, 5), Key(2, 6)]


def test_a_newer_complete_step_releases_the_older_ones() -> None:
    resumed = Retention(generation=2).resumes(Key(1, 10))
    complete = resumed.learns(5, ())
    assert kept(complete) == [Key(2, 5), Key(2, 6)]
    assert [key for key in KEYS if complete.is_pending(key)] == [Key(2, 6)]
    assert complete.learns(None, ()) == complete
    assert complete.learns(4, ()) == complete


def test_late_decision_keeps_the_newer_complete_step() -> None:
    late = Retention(generation=2).learns(5, ()).resumes(Key(1, 10))
    assert late.complete == Key(2, 5)
    assert kept(late) == [Key(2, 5), Key(2, 6)]


def test_dead_steps_go_at_once() -> None:
    resumed = Retention(generation=2).resumes(Key(1, 10)).learns(None, (5,))
    assert kept(resumed) == [Key(1, 10), Key(2, 6)]
