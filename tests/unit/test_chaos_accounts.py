"""The audit of a chaos run finds inconsistencies."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from ddp_operator.api.constants import LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB_NAME, LABEL_SERVING
from ddp_operator.api.status import DDPJobStatus

from tests.chaos.accounts import Account, Begun
from tests.chaos.journal import Deed
from tests.chaos.record import Record
from tests.chaos.schedule import TIMES, Kind, schedule

KILLED = {
    "time": "2026-01-01T00:00:00Z",
    "attempt": 0,
    "index": 1,
    "pod": "train-0-1",
    "signal": 9,
    "reason": "Error",
    "class": "Application",
    "charged": True,
}
DELETED = {
    "time": "2026-01-01T00:01:00Z",
    "attempt": 1,
    "index": 0,
    "pod": "train-1-0",
    "reason": "Deleted",
    "class": "Disruption",
}
STATUS: dict[str, Any] = {
    "attempt": 2,
    "restarts": 1,
    "disruptions": 1,
    "failures": [KILLED, DELETED],
}
DEEDS = (
    Deed(1.0, Kind.KILL_CONTAINER, "train", "train-0-1"),
    Deed(2.0, Kind.DELETE_POD, "train", "train-1-0"),
    Deed(3.0, Kind.DELETE_POD, "other", "other-0-0"),
)


def pod(name: str, *, uid: str = "", phase: str = "Running", serving: bool = True) -> Any:
    """Return a pod as the API server has it; its labels follow from its name."""
    _, attempt, index, *_ = name.split("-")
    labels = {LABEL_JOB_NAME: "train", LABEL_ATTEMPT: attempt, LABEL_INDEX: index}
    if serving:
        labels[LABEL_SERVING] = "true"
    metadata = {"name": name, "uid": uid or f"uid of {name}", "labels": labels}
    return {"metadata": metadata, "status": {"phase": phase}}


def job(attempt: int, *, reason: str = "", generation: int = 0) -> Any:
    """Return a job as the API server has it, which restarts for a reason."""
    condition = {
        "type": "Restarting",
        "status": "True",
        "reason": reason,
        "lastTransitionTime": "2026-01-01T00:02:00Z",
    }
    world = {"generation": generation, "members": "0-1"}
    status = {"attempt": attempt, "conditions": [condition] if reason else [], "world": world}
    return {"metadata": {"name": "train"}, "status": status}


def account(
    *, status: dict[str, Any] | None = None, names: Sequence[str] = (), scope: str = "Gang"
) -> Account:
    """Return a gang of two pods that restarted twice, after a kill and a deletion."""
    record = Record()
    seen = [f"train-{attempt}-{index}" for attempt in range(3) for index in range(2)]
    for name in [*seen, *names]:
        record.see(pod(name))
    return Account(
        name="train",
        scope=scope,
        replicas=2,
        status=DDPJobStatus.model_validate(STATUS | (status or {})),
        pods=[pod(f"train-2-{index}", phase="Succeeded") for index in range(2)],
        deeds=DEEDS,
        record=record,
    )


def test_consistent_account_has_no_complaints() -> None:
    assert account().complaints() == []


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        ({"restarts": 2}, "2 charged restarts of 1 kills"),
        ({"disruptions": 2}, "2 disruptions of 1 removals"),
        ({"restarts": 0}, "but 2 new attempts, 0 replacements, 0 generations"),
        ({"attempt": 3}, "pods of attempts [0, 1, 2] were seen"),
        ({"failures": [KILLED]}, "1 failures on record instead of 2"),
        ({"failures": [KILLED, DELETED | {"charged": True}]}, "nothing was done that explains"),
        ({"failures": [KILLED | {"pod": "train-0-0"}, DELETED]}, "nothing was done that explains"),
        ({"failures": [KILLED | {"signal": 15}, DELETED]}, "nothing was done that explains"),
        ({"bookkeeping": {"barredNodes": ["node"]}}, "there is no other node"),
    ],
)
def test_inconsistent_status_is_found(status: dict[str, Any], complaint: str) -> None:
    assert any(complaint in text for text in account(status=status).complaints())


def test_rescheduled_pods_are_not_a_decision() -> None:
    fewer = account(status={"disruptions": 0, "failures": [KILLED]})
    assert any("but 2 new attempts" in text for text in fewer.complaints())
    for attempt, reason in [(0, ""), (1, "PodFailed"), (2, "Rescheduled"), (2, "Rescheduled")]:
        fewer.record.see_job(job(attempt, reason=reason))
    assert fewer.complaints() == []
    fewer.record.see_job(job(2, reason="PodFailed"))
    assert fewer.record.rescheduled == {"train": {2}}


def test_unexpected_pods_are_found() -> None:
    good = account()
    left = replace(good, pods=[*good.pods, pod("train-1-1")])
    assert "its pods should be" in left.complaints()[0]
    unfinished = replace(good, pods=[pod("train-2-0"), pod("train-2-1")])
    assert "its pods should be" in unfinished.complaints()[0]


def test_replacements_count_only_in_scope_pod() -> None:
    three = {"disruptions": 1, "restarts": 1, "attempt": 1}
    one_replaced = account(status=three, names=["train-1-0-r1"], scope="Pod")
    (complaint,) = one_replaced.complaints()[:1]
    assert "attempt 1, but pods of attempts [0, 1, 2] were seen" in complaint
    gang = account(status={"attempt": 1}, names=["train-1-0-r1"])
    assert any(
        "but 1 new attempts, 1 replacements, 0 generations" in text for text in gang.complaints()
    )


@pytest.mark.parametrize(
    ("seen", "fits"),
    [
        ([(0, 1)], False),
        ([(0, 2)], True),
        ([(0, 1), (0, 3)], True),
        ([(0, 1), (1, 0)], True),
        ([(0, 0), (1, 0)], False),
        ([(0, 1), (1, 1), (1, 2)], True),
    ],
)
def test_each_decision_in_place_has_a_generation_or_an_attempt(
    seen: Sequence[tuple[int, int]], fits: bool
) -> None:
    attempt, _ = seen[-1]
    restarted = account(status={"attempt": attempt}, scope="InPlace")
    for number, generation in seen:
        restarted.record.see_job(job(number, generation=generation))
    assert any("generations" in text for text in restarted.complaints()) is not fits


def test_two_pods_serving_one_rank_are_found() -> None:
    record = Record()
    record.see(pod("train-0-1"))
    record.see(pod("train-0-1", serving=False))
    record.see(pod("train-0-1-r1"))
    assert not record.doubles, "the first pod left DNS"
    record.see(pod("train-0-1-r2"))
    assert record.doubles == {"train-0-1-r1 and train-0-1-r2"}
    doubled = account()
    doubled.record.see(pod("train-2-1", uid="another"))
    assert doubled.complaints() == ["train: train-2-1 was created more than once"]


def test_same_seed_gives_the_same_schedule() -> None:
    steps = schedule(Random(7))
    assert steps == schedule(Random(7))
    assert steps != schedule(Random(8))
    assert {kind: [step.kind for step in steps].count(kind) for kind in TIMES} == TIMES


A, B, C = "train-2-0", "train-2-1", "train-2-1-r1"
"""Two pods of the last attempt, and the replacement of the second."""


def begun(pod: str, first: int, *steps: int) -> list[Begun]:
    """Return one step per second, beginning at a second."""
    return [Begun(first + number, pod, step) for number, step in enumerate(steps)]


def test_steps_of_unknown_pods_are_found() -> None:
    unknown = replace(account(), steps=[begun("", 0, 1, 2), begun(A, 0, 1, 2)])
    assert "train: steps were begun in pods that nobody saw: ['']" in unknown.complaints()


def went_back(*ranks: Sequence[Begun], faults: Sequence[Deed]) -> bool:
    """Return whether the audit of a job with one attempt finds repeated steps."""
    known = account(status={"attempt": 0}, names=[C])
    complaints = replace(known, steps=ranks, deeds=faults).complaints()
    assert not any("nobody saw" in text for text in complaints)
    return any("went back" in text for text in complaints)


def fault(seconds: float, pod: str, kind: Kind = Kind.FORCE_DELETE_POD) -> Deed:
    return Deed(seconds, kind, "train", pod)


def test_only_one_step_may_be_repeated_without_a_fault() -> None:
    assert not went_back(begun(A, 0, 1, 2, 2, 3), begun(B, 0, 1, 2, 3, 2, 3), faults=())
    assert went_back(begun(A, 0, 1, 2, 3, 1), faults=())
    assert went_back(begun(A, 0, 1, 2, 3, 1), begun(B, 0, 1, 2, 3, 1), faults=[fault(2.5, B)])


def test_steps_may_be_repeated_after_a_fault_of_the_only_copy() -> None:
    both = [fault(2.5, B), fault(5.5, A)]
    alone = begun(A, 0, 1, 2, 3, 4, 5, 6)
    assert not went_back(alone + begun(C, 9, 1), begun(B, 0, 1, 2, 3), faults=both)
    taken_over = begun(B, 0, 1, 2, 3) + begun(C, 4, 5, 6)
    assert went_back(alone + begun(C, 9, 1), taken_over, faults=both)


def test_pod_without_the_state_for_minutes_excuses_nothing() -> None:
    alone = begun(A, 0, *range(1, 200)) + begun(C, 300, 1)
    for second, is_found in ((100.0, False), (190.0, True)):
        faults = [fault(2.5, B), fault(second, A)]
        assert went_back(alone, begun(B, 0, 1, 2, 3), faults=faults) is is_found


def test_new_process_has_the_state_once_it_trains() -> None:
    faults = [fault(2.5, B, Kind.KILL_RANK), fault(6.5, A)]
    alone = begun(A, 0, 1, 2, 3, 4, 5, 6) + begun(B, 9, 1)
    assert not went_back(alone, begun(B, 0, 1, 2, 3), faults=faults)
    again = begun(B, 0, 1, 2, 3) + begun(B, 5, 5)
    assert went_back(alone, again, faults=faults)
    gone = [replace(faults[0], kind=Kind.KILL_CONTAINER), faults[1]]
    assert not went_back(alone, again, faults=gone), (
        "these are the last steps of a stopped container"
    )


def test_pods_of_earlier_attempts_have_no_state() -> None:
    earlier = begun("train-1-1", 0, 1, 2)
    alone = begun(A, 3, 1, 2, 3) + begun(C, 9, 1)
    assert not went_back(alone, earlier, faults=[fault(2.5, B), fault(6.5, A)])
