"""The check of goodput finds time that was booked wrongly."""

from dataclasses import replace

import pytest
from ddp_operator.api.status import DDPJobStatus, Goodput

from tests.chaos.accounts import Begun
from tests.chaos.goodput_account import GoodputAccount
from tests.chaos.journal import Deed
from tests.chaos.schedule import Kind

POD = "gang-3-0-1"


def account(
    training: int, lost: int, *, resumed: int = 100, pod: str = "gang-3-1-1"
) -> GoodputAccount:
    """A job that begins to train at 10, loses a pod at 110.5 and trains again from 130 on."""
    before = [Begun(9.0 + step, POD, step) for step in range(1, 103)]
    after = [Begun(129.0 + step - resumed, pod, step) for step in range(resumed + 1, 201)]
    end = after[-1].seconds + 1
    books = Goodput(
        pending_seconds=3,
        starting_seconds=8,
        training_seconds=training,
        lost_seconds=lost,
    )
    return GoodputAccount(
        name="gang-3",
        created=0.0,
        ended=end,
        status=DDPJobStatus(goodput=books),
        steps=[[*before, *after]],
        deeds=[Deed(110.5, Kind.KILL_RANK, "gang-3", POD), Deed(50.0, Kind.KILL_RANK, "pod-1")],
    )


def test_time_that_fits_the_steps_is_accepted() -> None:
    # Step 100 is complete at 110, and step 101 again at 131.
    assert list(account(198, 21).complaints()) == []
    # Steps from 61 to 101 are repeated: their first time is lost.
    assert list(account(198, 61, resumed=60).complaints()) == []


@pytest.mark.parametrize(("training", "lost"), [(208, 11), (180, 39)])
def test_time_that_differs_from_the_steps_is_found(training: int, lost: int) -> None:
    found = list(account(training, lost).complaints())
    assert found == [
        f"gang-3: {training} s of training, but its steps show 198 s",
        f"gang-3: {lost} s of lost, but its steps show 21 s",
    ]


def test_a_deleted_pod_trains_until_it_has_saved() -> None:
    # The pod gets SIGTERM two seconds before its last step begins.
    graceful = Deed(108.5, Kind.DELETE_POD, "gang-3", POD)
    assert list(replace(account(198, 21), deeds=[graceful]).complaints()) == []
    assert list(replace(account(219, 0), deeds=[graceful]).complaints()) != []


def test_pod_before_it_joins_or_after_it_left_costs_no_time() -> None:
    spare = Deed(50.5, Kind.KILL_CONTAINER, "gang-3", "gang-3-0-2")
    gone = Deed(150.5, Kind.FORCE_DELETE_POD, "gang-3", POD)
    own = account(198, 21)
    assert list(replace(own, deeds=[*own.deeds, spare, gone]).complaints()) == []
    # Before the first step every pod counts.
    early = replace(spare, seconds=1.0)
    assert list(replace(own, deeds=[*own.deeds, early]).complaints()) == [
        "gang-3: 21 s of lost, but its steps show 31 s",
        "gang-3: 11 s of waiting and starting, but its steps show 1 s",
    ]


def test_time_without_steps_is_lost_when_another_pod_joins() -> None:
    grown = replace(account(198, 21), deeds=[])
    assert list(grown.complaints()) == []
    joined = [Begun(130.0 + step - 100, "gang-3-0-2", step) for step in range(101, 201)]
    same = account(198, 21, pod=POD)
    assert list(replace(same, deeds=[], steps=[*same.steps, joined]).complaints()) == []
    assert list(replace(same, deeds=[]).complaints()) != []
