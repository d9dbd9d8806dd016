"""Reasons of Events, conditions and failures are explained, and no others."""

import ast
import re
from pathlib import Path

import ddp_operator
import pytest
from ddp_client.views.reasons import OF_CLUSTER, OWN, REASONS
from ddp_operator.job.failure import classes
from ddp_operator.job.pods import state

OPERATOR = Path(ddp_operator.__file__).parent
_REASON = re.compile(r"[A-Z]+[a-z]+[A-Za-z]*")
OTHERS = """
Admitted All Always Application Authorization Auto CannotStart Changing ChildFailedError Chosen
ClusterFirst ClusterFirstWithHostNet ComputeDomain ComputeDomains Configuration
DeletionByTaintManager Directory DirectoryOrCreate Disruption DisruptionTarget Dropped Equal
ExactCount Exists FailJob Failed FallbackToLogsOnError False Finished Gang Gone IfNotPresent Ignore
InPlace Infrastructure Ingress Initializing Job KeyT Leaving Lost Memory Metrics NetworkPolicy Never
NoExecute NoMatchingWorkload NoReservation NoSchedule NodeFailures None NotAdmitted NotIn NotStarted
Opaque Other OutOf OwnerT Paused Pending Plan Pod PodGroup PodReadyToStartContainers PodScheduled
Preferred PriorityClass QuotaReserved Ready Refused Replace Requested Requeued Required
ResourceClaimTemplate RestartGang RestartInPlace RestartPod Secret Service SideCars Silent Simple
Starting TerminatedByKueue Terminating TerminationTarget True Unscheduled Workload
WorkloadDeleted WorkloadEvicted WorkloadPriorityClass
"""
"""Words in the source with the form of a reason: kinds, values of fields, phases and classes."""


@pytest.fixture(scope="module")
def words() -> set[str]:
    """Return all string literals with the form of a reason in modules that decide about jobs."""
    return {
        node.value
        for part in ("job", "engine")
        for path in (OPERATOR / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if _REASON.fullmatch(node.value)
    }


def test_each_reason_of_the_operator_is_explained(words: set[str]) -> None:
    new = words - REASONS.keys() - set(OTHERS.split())
    assert new == set(), "explain new reasons; add other words to OTHERS"


def test_each_explained_reason_is_used(words: set[str]) -> None:
    assert OWN.keys() - words == set()


def test_each_handled_reason_of_the_cluster_is_explained() -> None:
    known = {
        *state.DISRUPTION_REASONS,
        *state.UNSTARTABLE_REASONS,
        *(state.CRASH_LOOP, state.GATED, state.CONTAINER_LOST),
        *classes._START_FAILED,
        *classes.NODE_REASONS,
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
