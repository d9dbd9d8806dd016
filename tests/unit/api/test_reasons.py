from pathlib import Path

import ddp_operator
import pytest
from ddp_operator.api.reasons import OF_CLUSTER, OWN, REASONS
from ddp_operator.job.failure import classes
from ddp_operator.job.pods import state

from tests.unit.api.used_reasons import Source, UnknownReasonError, operator_source


@pytest.fixture(scope="module")
def used() -> set[str]:
    return operator_source(Path(ddp_operator.__file__).parent).reasons()


def test_each_reason_of_the_operator_is_explained(used: set[str]) -> None:
    # When a job fails, the Event has the reason; the condition has only its type.
    assert used - {"Failed"} - REASONS.keys() == set()


def test_each_explained_reason_is_used(used: set[str]) -> None:
    # The model's own, if the cluster gives none; a test of the status covers it.
    assert OWN.keys() - used == {"Unknown"}


def test_each_handled_reason_of_the_cluster_is_explained() -> None:
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
def test_explanation_is_a_short_phrase(reason: str) -> None:
    assert reason.isidentifier()
    assert reason[0].isupper()
    for text in REASONS[reason]:
        assert 3 < len(text) < 200
        assert text == " ".join(text.split())
        assert text[0].islower()
        assert text[-1] not in ".,:;"
        assert "TODO" not in text


@pytest.mark.parametrize(
    "body",
    [
        "def f(): Event('New', 'text')",
        "def f(): Event(reason='New', message='text')",
        "def f(x):\n    reason, y = ('Old', 'a') if x else ('New', 'b')\n    Event(reason, y)",
        "def f(reason): Event(reason, 'text')\ndef g(): f('New')",
        "def f(*, reason='New'): Event(reason, 'text')",
        "def f(a, reason): Event(reason, 'text')\ndef g():\n    used = ('New', 1)\n    f(0, *used)",
        "def f(pod): Event(g(pod), 'text')\ndef g(pod): return pod.reason or 'New'",
        "def f(x): Event({'a': 'Old'}.get(x, 'New'), 'text')",
        "def f(): Event(CONSTANT, 'text')",
        "def f(): Event(words.CONSTANT, 'text')",
        "def f(): Failure(reason='New')",
    ],
)
def test_search_finds_a_new_reason(body: str) -> None:
    assert (
        "New" in Source({"new": body}, {"CONSTANT": "New", "words": {"CONSTANT": "New"}}).reasons()
    )


def test_search_names_an_expression_that_it_cannot_follow() -> None:
    body = "def f(x): Event(x.lower().title(), 'text')"
    with pytest.raises(UnknownReasonError, match="new, line 1: cannot find the text of"):
        Source({"new": body}, {}).reasons()
