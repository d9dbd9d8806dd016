"""The rules of leader election, case by case; `test_election_machine` plays them out."""

from dataclasses import replace

import pytest
from ddp_operator.kube.election.rules import (
    Candidate,
    LeaseRecord,
    Lost,
    Read,
    Step,
    Timing,
    Wait,
    Write,
)

TIMING = Timing(
    lease_duration=10,
    renew_deadline=7.0,
    renew_interval=2.0,
    retry_interval=1.0,
    request_timeout=2.0,
)
ME = Candidate("me", TIMING)


def record(holder: str, version: str = "5", *, duration: float = 10.0) -> LeaseRecord:
    return LeaseRecord(holder=holder, duration=duration, version=version)


# Both hold the lease since 100.0.
LEADER = ME.wrote(record("me"), sent_at=100.0)
# It saw at 100.0 that another replica holds the lease.
STANDBY = ME.read(record("other"), at=100.0)


@pytest.mark.parametrize(
    ("candidate", "now", "expected"),
    [
        # Standing by.
        (ME, 0.0, Read()),
        (ME.read(None, at=100.0), 100.0, Write(None)),
        (ME.read(record(""), at=100.0), 100.0, Write("5")),
        (STANDBY, 100.0, Wait(101.0)),
        (STANDBY, 101.0, Read()),
        (STANDBY.read(record("other"), at=109.5), 109.5, Wait(110.0)),
        (STANDBY.read(record("other"), at=109.9), 110.0, Read()),
        (STANDBY.read(record("other"), at=110.0), 110.0, Write("5")),
        (STANDBY.read(record("other", "6"), at=110.0), 110.0, Wait(111.0)),
        (STANDBY.read(record("third", "6"), at=110.0), 110.0, Wait(111.0)),
        (STANDBY.read(record("", "6"), at=102.0), 102.0, Write("6")),
        # The holder's promised duration counts, not this candidate's.
        (ME.read(record("other", duration=30.0), at=100.0).read(
            record("other", duration=30.0), at=129.0), 129.0, Wait(130.0)),
        # A deleted lease: its holder may not have noticed yet.
        (STANDBY.read(None, at=105.0), 105.0, Wait(106.0)),
        (STANDBY.read(None, at=105.0).read(None, at=115.0), 115.0, Write(None)),
        # Another replica was faster, or a response was lost.
        (ME.read(None, at=100.0).refused(at=100.5), 100.5, Wait(101.5)),
        (ME.read(None, at=100.0).refused(at=100.5), 101.5, Read()),
        (ME.read(None, at=100.0).unanswered(sent_at=100.0, at=102.0), 102.0, Read()),
        (ME.unanswered(sent_at=100.0, at=100.1), 100.1, Wait(101.0)),
        (ME.read(None, at=100.0).read(record("me"), at=103.0), 103.0, Write("5")),
        # Holding.
        (LEADER, 100.1, Wait(102.0)),
        (LEADER, 102.0, Write("5")),
        (LEADER.wrote(record("me", "6"), sent_at=102.0), 103.9, Wait(104.0)),
        (LEADER.unanswered(sent_at=102.0, at=104.0), 104.0, Write("5")),
        (LEADER.unanswered(sent_at=102.0, at=102.1), 102.1, Wait(103.0)),
        (LEADER.unanswered(sent_at=106.5, at=106.6), 106.6, Wait(107.0)),
        (LEADER.refused(at=102.1), 102.1, Read()),
        (LEADER.refused(at=102.1).read(record("me", "6"), at=102.2), 102.2, Write("6")),
        (LEADER.refused(at=102.1).read(None, at=102.2), 102.2, Write(None)),
        (LEADER.refused(at=102.1).read(record("other"), at=102.2), 102.2,
         Lost("other holds it now")),
        (LEADER.refused(at=102.1).read(record(""), at=102.2), 102.2, Lost("nobody holds it now")),
        (LEADER, 107.0, Lost("it could not be renewed for 7 s")),
    ],
)  # fmt: skip
def test_next_step(candidate: Candidate, now: float, expected: Step) -> None:
    assert candidate.next_step(now) == expected


def test_only_a_holder_may_act_until_its_deadline() -> None:
    assert not ME.may_act(100.0)
    assert not STANDBY.may_act(1e9)
    assert LEADER.may_act(100.0)
    assert LEADER.may_act(106.9)
    assert not LEADER.may_act(107.0)
    assert not replace(LEADER, lost="stolen").may_act(100.0)


def test_late_success_counts_from_the_time_of_its_request() -> None:
    late = ME.read(None, at=100.0).wrote(record("me"), sent_at=100.0)
    assert late.may_act(106.0)
    assert isinstance(late.next_step(108.0), Lost)


def test_timing_without_a_margin_is_refused() -> None:
    with pytest.raises(ValueError, match="must stop before others"):
        Timing(lease_duration=10, renew_deadline=10.0)
    with pytest.raises(ValueError, match="able to renew"):
        Timing(renew_interval=7.0, renew_deadline=7.0)
    with pytest.raises(ValueError, match="able to renew"):
        Timing(retry_interval=3.0, renew_interval=2.0)
