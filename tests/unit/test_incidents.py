"""The verdict on an incident finds what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ddp_operator.api.status import DDPJobStatus

from tests.chaos.accounts import Begun
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
    """Step 1, 2 and so on, 0.5 s apart, and five seconds before a pod's first one."""
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


def test_an_expected_incident_passes() -> None:
    assert SEEN.complaints(EXPECTED) == []
    assert SEEN.seconds_without_step == 5.0


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
def test_what_is_wrong_is_found(seen: Seen, complaint: str) -> None:
    [found] = seen.complaints(EXPECTED)
    assert complaint in found
