"""Tests of `plan`: a client has sent other code to the pods, and says so by an annotation."""

from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.code import PARTS_VOLUME
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.manifests import pod as pod_manifest
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import Identity, PodState

from tests.good_manifests import template
from tests.unit.job.builders import (
    NOW,
    condition,
    edited,
    ended,
    event_reasons,
    fresh_job,
    group,
    later,
    stored,
)
from tests.unit.job.planning.group.test_in_place import (
    LISTENS,
    failure,
    in_place,
    knowing,
    launchers,
    plan_with,
    starts,
)
from tests.unit.job.status.test_progress import report

OLD, NEW = "aaaaaaaaaaaa-0001/1", "bbbbbbbbbbbb-0002/2"


def with_volume() -> dict[str, Any]:
    made = template()
    volume = {"name": PARTS_VOLUME, "projected": {"sources": []}}
    made["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}, volume]
    return made


def annotated(job: DDPJob, code: str) -> DDPJob:
    return replace(job, code_requested=code)


def running(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a job of three pods with launchers that answer, and the code OLD."""
    job, pods = in_place(template=with_volume(), **spec)
    status = job.status.noting(code_requested=OLD, code=OLD)
    return annotated(replace(job, status=status), OLD), pods


def test_first_pods_have_the_code_of_the_annotation() -> None:
    job = annotated(fresh_job(template=with_volume()), OLD)
    job = annotated(stored(job, plan(job, [], NOW)), OLD)
    notes = job.status.bookkeeping
    assert (notes.code_requested, notes.code, job.status.attempt) == (OLD, OLD, 0)
    assert len(plan(job, [], NOW).create) == 2


@pytest.mark.parametrize("scope", ["InPlace", "Auto"])
def test_new_code_restarts_processes_in_their_pods_uncharged(scope: str) -> None:
    job, pods = running(restart={"scope": scope, "maxRestarts": 0})
    planned = plan(annotated(job, NEW), pods, later(60), launchers=LISTENS)
    assert planned.decided
    assert condition(planned, "Restarting") == ("True", "CodeChanged")
    [event] = planned.events
    assert (event.warning, event.message) == (
        False,
        "all processes restart in place with code bbbbbbbbbbbb-0002: a person changed it",
    )
    status = planned.status
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 0)
    assert (group(planned).generation, status.bookkeeping.replacements) == (1, {})

    job = annotated(stored(job, planned), NEW)
    planned = plan(job, pods, later(60), launchers=LISTENS)
    assert (planned.decided, planned.create, planned.delete) == (False, (), ())
    codes = {each.group.code for each in planned.assignments}
    assert (codes, len(planned.assignments)) == ({"bbbbbbbbbbbb-0002"}, 3)
    assert not any(starts(planned).values()), "old processes may still run"
    planned = plan_with(job, pods, later(61), **knowing(pods, 1, start=False))
    assert all(starts(planned).values())
    done = plan_with(job, pods, later(62), **knowing(pods, 1))
    assert condition(done, "Running")[0] == "True"


@pytest.mark.parametrize("scope", ["InPlace", "Gang"])
def test_new_code_begins_without_the_numbers_of_the_code_before(scope: str) -> None:
    job, pods = running(restart={"scope": scope})
    heard = report(100, metrics={"lr": 0.1}, code="aaaaaaaaaaaa-0001")
    job = annotated(stored(job, plan(job, pods, later(50), report=heard)), OLD)
    assert job.status.progress is not None
    planned = plan(annotated(job, NEW), pods, later(60), launchers=LISTENS, report=heard)
    assert planned.decided
    assert (planned.status.progress, planned.status.bookkeeping.metrics) == (None, {})
    job = annotated(stored(job, planned), NEW)
    planned = plan(job, pods, later(61), launchers=LISTENS, report=heard)
    assert planned.status.progress is None, "old processes report it"


def test_failures_of_the_code_before_are_forgotten() -> None:
    job, pods = running(restart={"maxRestarts": 1})
    failed = launchers(failure(pods[1]))
    charged = stored(job, plan(job, pods, later(60), launchers=failed))
    again = stored(
        charged, plan(charged, pods, later(90), launchers=launchers(failure(pods[1], generation=1)))
    )
    assert again.status.phase == "Failed"
    planned = plan(annotated(charged, NEW), pods, later(61), launchers=failed)
    notes = planned.status.bookkeeping
    assert (notes.restarts_without_progress, planned.status.next_start_time) == (0, None)
    assert planned.status.restarts == 1, "the count of the whole job stays"
    assert group(planned).generation == 2


def test_code_precedes_a_failure_that_is_not_decided() -> None:
    job, pods = running(restart={"maxRestarts": 0})
    failed = launchers(failure(pods[1]))
    planned = plan(annotated(job, NEW), pods, later(60), launchers=failed)
    assert (planned.status.failures, group(planned).generation) == ((), 1)
    job = annotated(stored(job, planned), NEW)
    assert not plan(job, pods, later(60), launchers=failed).decided, "it is of the old processes"


@pytest.mark.parametrize(
    ("scope", "states", "saved", "why"),
    [
        ("Gang", LISTENS, None, "spec.restart.scope is Gang"),
        ("InPlace", replace(LISTENS, silent_since=later(30)), None, "no launcher answers"),
        ("InPlace", LISTENS, 0, "rank 0 saved in its pod"),
    ],
)
def test_pods_that_cannot_take_code_are_replaced(
    scope: str, states: LauncherStates, saved: int | None, why: str
) -> None:
    job, pods = running(restart={"scope": scope})
    job = replace(job, status=job.status.noting(saved_in_pod=saved))
    planned = plan(annotated(job, NEW), pods, later(60), launchers=states)
    assert (planned.status.attempt, planned.status.bookkeeping.code) == (1, NEW)
    assert condition(planned, "Restarting") == ("True", "CodeChanged")
    assert f"restarting all pods ({why}) with code" in planned.events[0].message
    after = plan(annotated(stored(job, planned), NEW), pods, later(61), launchers=states)
    assert set(after.delete) == {pod.key for pod in pods}


def test_job_with_a_completed_pod_starts_new_code_in_new_pods() -> None:
    job, pods = running()
    pods = [ended(job, 0, code=0), *pods[1:]]
    planned = plan(annotated(job, NEW), pods, later(60), launchers=LISTENS)
    assert planned.status.attempt == 1


@pytest.mark.parametrize(
    ("code", "takes", "why"),
    [
        ("latest", True, "it names no code"),
        (NEW, False, f"the template has no volume {PARTS_VOLUME}"),
    ],
)
def test_annotation_that_names_no_code_is_refused_once(code: str, takes: bool, why: str) -> None:
    job, pods = running() if takes else in_place()
    planned = plan(annotated(job, code), pods, later(60), launchers=LISTENS)
    assert planned.decided
    assert event_reasons(planned) == ["CodeRefused"]
    assert why in planned.events[0].message
    assert planned.status.world is None
    job = annotated(stored(job, planned), code)
    after = plan(job, pods, later(61), launchers=LISTENS)
    assert (after.decided, after.events) == (False, ())
    assert job.status.bookkeeping.code == (OLD if takes else "")


def test_removed_annotation_changes_nothing() -> None:
    job, pods = running()
    planned = plan(annotated(job, ""), pods, later(60), launchers=LISTENS)
    assert (planned.decided, planned.status.bookkeeping.code) == (False, OLD)


def test_suspended_job_resumes_with_new_code_at_once() -> None:
    job, pods = running()
    job = annotated(stored(job, plan(edited(job, suspend=True), pods, later(60))), NEW)
    job = annotated(edited(job, suspend=True), NEW)
    planned = plan(job, [], later(61))
    assert (planned.decided, planned.status.bookkeeping.code) == (True, NEW)
    job = annotated(edited(stored(job, planned), suspend=False), NEW)
    resumed = plan(job, [], later(62))
    assert resumed.status.attempt == 1
    job = annotated(stored(job, resumed), NEW)
    assert len(plan(job, [], later(63)).create) == 3


def test_pods_are_created_with_the_code_of_their_group() -> None:
    job, pods = running()
    volumes = pod_manifest(job, Identity(1, 0, 1))["spec"]["volumes"]
    sources = {volume["name"]: volume.get("projected") for volume in volumes}
    assert sources[PARTS_VOLUME] == {
        "sources": [{"configMap": {"name": "digits-code-aaaaaaaaaaaa-0001-0"}}]
    }
    job = stored(job, plan(annotated(job, NEW), pods, later(60), launchers=LISTENS))
    made = pod_manifest(job, Identity(1, 0, 1))
    assert made["metadata"]["annotations"]["ddp-operator.io/code"] == "bbbbbbbbbbbb-0002"
    [projected] = [one["projected"] for one in made["spec"]["volumes"] if "projected" in one]
    names = [source["configMap"]["name"] for source in projected["sources"]]
    assert names == [f"digits-code-bbbbbbbbbbbb-0002-{number}" for number in (0, 1)]


PIP = "pip install -r requirements.txt failed: ERROR: No matching distribution found for nosuch"


def test_failed_installation_ends_the_job_with_the_words_of_pip() -> None:
    job = fresh_job(template=with_volume())
    job = stored(job, plan(job, [], NOW))
    made = pod_manifest(job, Identity(0, 0))
    made["spec"]["initContainers"] = [{"name": "ddp-code", "image": "me/train:1"}]
    ended = {"exitCode": 64, "reason": "Error", "message": f"sees nothing\n{PIP}\n"}
    waits = {"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}
    made["status"] = {
        "phase": "Failed",
        "initContainerStatuses": [{"name": "ddp-code", "state": {"terminated": ended}}],
        "containerStatuses": [waits],
    }
    planned = plan(job, [project(made)], later(5))
    assert condition(planned, "Failed") == ("True", "ConfigurationError")
    assert planned.status.message.endswith(PIP)
    assert planned.status.restarts == 0
