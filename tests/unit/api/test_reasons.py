from pathlib import Path

import ddp_operator
import pytest
from ddp_operator.api.reasons import OF_CLUSTER, OWN, REASONS
from ddp_operator.job.failure import classes
from ddp_operator.job.pods import state

from tests.unit.api.said_reasons import Source, UnknownReasonError, operator_source


@pytest.fixture(scope="module")
def said() -> set[str]:
    return operator_source(Path(ddp_operator.__file__).parent).reasons()


def test_each_reason_that_the_operator_says_is_explained(said: set[str]) -> None:
    # When a job fails, the Event has the reason; the condition has only its type.
    assert said - {"Failed"} - REASONS.keys() == set()


def test_no_reason_is_explained_that_nobody_says(said: set[str]) -> None:
    # The model's own, if the cluster gives none; a test of the status covers it.
    assert OWN.keys() - said == {"Unknown"}


def test_each_reason_of_the_cluster_that_is_acted_upon_is_explained() -> None:
    known = {
        *state.DISRUPTION_REASONS,
        *state.UNSTARTABLE_REASONS,
        *(state.CRASH_LOOP, state.GATED, state.CONTAINER_LOST),
        *classes._START_FAILED,
        *classes._NODE_REASONS,
        *classes._CERTAIN,
        "Unschedulable",
    }
    assert known - REASONS.keys() == set()
    assert OF_CLUSTER.keys() - known == set()


@pytest.mark.parametrize("reason", REASONS)
def test_it_is_said_in_one_voice(reason: str) -> None:
    assert reason.isidentifier()
    assert reason[0].isupper()
    for said in REASONS[reason]:
        assert 3 < len(said) < 200
        assert said == " ".join(said.split())
        assert said[0].islower()
        assert said[-1] not in ".,:;"
        assert "TODO" not in said


@pytest.mark.parametrize(
    "body",
    [
        "def f(): Event('New', 'text')",
        "def f(): Event(reason='New', message='text')",
        "def f(x):\n    reason, y = ('Old', 'a') if x else ('New', 'b')\n    Event(reason, y)",
        "def f(reason): Event(reason, 'text')\ndef g(): f('New')",
        "def f(*, reason='New'): Event(reason, 'text')",
        "def f(a, reason): Event(reason, 'text')\ndef g():\n    said = ('New', 1)\n    f(0, *said)",
        "def f(pod): Event(g(pod), 'text')\ndef g(pod): return pod.reason or 'New'",
        "def f(x): Event({'a': 'Old'}.get(x, 'New'), 'text')",
        "def f(): Event(CONSTANT, 'text')",
        "def f(): Event(words.CONSTANT, 'text')",
        "def f(): Failure(reason='New')",
    ],
)
def test_the_search_finds_a_new_one(body: str) -> None:
    assert (
        "New" in Source({"new": body}, {"CONSTANT": "New", "words": {"CONSTANT": "New"}}).reasons()
    )


def test_the_search_says_what_it_does_not_understand() -> None:
    body = "def f(x): Event(x.lower().title(), 'text')"
    with pytest.raises(UnknownReasonError, match="new, line 1: where does this word come from"):
        Source({"new": body}, {}).reasons()
