"""The checks of memory checkpoints find what is wrong, and allow what losses explain."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from ddp_operator.api.status import MemoryCheckpointRecord

from tests.chaos.memory_account import Loss, MemoryAccount, Start
from tests.chaos.record import Sighting


def starts(generation: int, at: float, step: int, *pods: str) -> list[Start]:
    """Start a rank in each pod."""
    return [
        Start(
            rank=rank,
            generation=generation,
            step=step,
            saved_in=generation - 1 if step else None,
            of_rank=rank,
            whole=True,
            pod=pod,
            time=at,
        )
        for rank, pod in enumerate(pods)
    ]


def complete(step: int, at: float) -> Sighting:
    """See a complete step in the status a second later."""
    record = MemoryCheckpointRecord(step=step, time=datetime.fromtimestamp(at, UTC))
    return Sighting(at + 1, record)


def account(resumed: int, *losses: Loss) -> MemoryAccount:
    """Return a job that restarts at 30 after step 8 was complete at 10."""
    names = ["a", "b", "c"]
    lost = {loss.pod for loss in losses}
    later = [f"{name}-r1" if name in lost else name for name in names]
    return MemoryAccount(
        copies=1,
        ranks=3,
        starts=[*starts(0, 1.0, 0, *names), *starts(1, 30.0, resumed, *later)],
        losses=losses,
        sightings=[complete(4, 5.0), complete(8, 10.0)],
    )


def test_a_step_that_was_complete_before_a_loss_must_be_found() -> None:
    good = account(8, Loss(20.0, "a"))
    assert good.complaints() == []
    assert (good.resumed, good.bounds) == ({0: 0, 1: 8}, {0: 0, 1: 8})
    [complaint] = account(4, Loss(20.0, "a")).complaints()
    assert "generation 1 resumed at step 4, but step 8 was complete" in complaint


def test_more_losses_than_copies_may_lose_everything() -> None:
    assert account(0, Loss(20.0, "a"), Loss(25.0, "b")).complaints() == []


def test_an_earlier_loss_does_not_count_once_its_pod_was_replaced() -> None:
    before = account(8, Loss(20.0, "a"))
    again = starts(2, 60.0, 8, "a-r1", "b-r1", "c")
    losses = [*before.losses, Loss(50.0, "b")]
    later = replace(before, losses=losses, sightings=[*before.sightings, complete(12, 40.0)])
    [complaint] = replace(later, starts=[*before.starts, *again]).complaints()
    assert "generation 2 resumed at step 8, but step 12 was complete" in complaint


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"step": 4}, "resumed from different steps"),
        ({"saved_in": 7}, "resumed from different steps"),
        ({"of_rank": 1}, "a state that is not its own"),
        ({"whole": False}, "a state that is not its own"),
    ],
)
def test_mixtures_are_found(wrong: dict[str, int], words: str) -> None:
    good = account(8, Loss(20.0, "a"))
    mixed = [*good.starts[:-1], replace(good.starts[-1], **wrong)]  # type: ignore[arg-type]
    assert words in replace(good, starts=mixed).complaints()[0]
