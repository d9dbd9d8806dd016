"""Tests of `plan`: start, success and finished jobs."""

from dataclasses import replace

import pytest
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import container, template
from tests.unit.job.builders import (
    NOW,
    condition,
    does_nothing,
    edited,
    ended,
    event_reasons,
    fresh_job,
    later,
    pod,
    ready,
    running_job,
    stored,
    with_status,
)


def test_unknown_accelerator_is_reported_once() -> None:
    known, unknown = {"type": "nvidia-l4"}, {"type": "nvidia-l40"}
    assert event_reasons(plan(fresh_job(accelerator=known), [], NOW)) == ["PodsCreated"]
    job = fresh_job(accelerator=known, overrides=[{"indexes": ["1"], "accelerator": unknown}])
    planned = plan(job, [], NOW)
    assert event_reasons(planned) == ["PodsCreated", "UnknownAccelerator"]
    event = planned.events[1]
    assert event.warning
    assert event.message.startswith("accelerator type nvidia-l40 is unknown to this release")
    assert "nvidia-l4," in event.message
    assert plan(stored(job, planned), [pod(job, 0), pod(job, 1)], later(1)).events == ()


def test_doubtful_command_is_reported_once() -> None:
    command = ["accelerate", "launch", "train.py"]
    job = fresh_job(template=template(container(command=command)))
    planned = plan(job, [], NOW)
    assert event_reasons(planned) == ["PodsCreated", "DoubtfulCommand"]
    assert planned.events[1].message.startswith("accelerate does not read the job's number of pods")
    assert plan(stored(job, planned), [pod(job, 0), pod(job, 1)], later(1)).events == ()


def test_side_car_that_failed_is_in_status_and_one_event() -> None:
    job, pods = running_job(replicas=2)
    failure = "container proxy ended with code 3: no such upstream"
    pods[1] = replace(pods[1], side_car_failure=failure)
    planned = plan(job, pods, later(20))
    assert planned.status.message == f"all 2 pods are ready; pod {pods[1].key.name}: {failure}"
    assert event_reasons(planned) == ["SideCarFailed"]
    assert (planned.status.restarts, planned.status.failures) == (0, ())
    assert plan(stored(job, planned), pods, later(21)).events == ()


class TestStart:
    def test_fresh_job_gets_its_service_and_pods(self) -> None:
        planned = plan(replace(fresh_job(), generation=7), [], NOW)
        assert not planned.decided
        assert planned.status.observed_generation == 7
        assert planned.create_service
        assert planned.create == (Identity(0, 0), Identity(1, 0))
        assert (planned.delete, planned.fence) == ((), ())
        assert planned.status.phase == "Pending"
        assert (planned.status.reason, planned.status.ready) == ("PodsStarting", "0/2")
        assert planned.status.start_time == NOW
        assert condition(planned, "PodsCreated") == ("True", "Created")
        assert event_reasons(planned) == ["PodsCreated"]

    @pytest.mark.parametrize("there", [(), (0,), (1,), (0, 1)])
    def test_missing_pods_are_created_after_a_crash(self, there: tuple[int, ...]) -> None:
        """No status is stored yet, so no pod counts as vanished."""
        job = fresh_job()
        planned = plan(job, [pod(job, index) for index in there], NOW)
        assert not planned.decided
        assert planned.create_service is not bool(there), (
            "the service is created before the first pod"
        )
        assert [i.index for i in planned.create] == [i for i in (0, 1) if i not in there]
        assert condition(planned, "PodsCreated") == ("True", "Created")

    def test_job_is_starting_then_running_although_a_pod_becomes_unready(self) -> None:
        job = fresh_job()
        job = stored(job, plan(job, [], NOW))
        starting = plan(job, [pod(job, i, node="node-a") for i in (0, 1)], NOW)
        assert does_nothing(starting)
        assert (starting.status.phase, starting.status.reason) == ("Starting", "PodsStarting")
        assert starting.status.message == "0 of 2 pods are ready"
        pods = [ready(job, 0), ready(job, 1)]
        planned = plan(job, pods, NOW)
        assert does_nothing(planned)
        assert (planned.status.phase, planned.status.ready) == ("Running", "2/2")
        assert condition(planned, "Running") == ("True", "PodsReady")
        assert event_reasons(planned) == ["Running"]
        planned = plan(stored(job, planned), [pods[0], replace(pods[1], ready=False)], later(20))
        assert does_nothing(planned)
        assert (planned.status.phase, planned.status.ready) == ("Running", "1/2")

    @pytest.mark.parametrize(
        ("why", "message"),
        [("ImagePullBackOff", "no such image"), ("Unschedulable", "no node has a GPU")],
    )
    def test_waiting_reason_of_a_pod_is_reported_once(self, why: str, message: str) -> None:
        job = fresh_job()
        job = stored(job, plan(job, [], NOW))
        pods = [ready(job, 0), pod(job, 1, waiting=why, waiting_message=message)]
        planned = plan(job, pods, NOW)
        assert condition(planned, "Running") == ("False", why)
        assert planned.status.reason == why
        assert "digits-0-1" in planned.status.message
        assert message in planned.status.message
        assert [(e.reason, e.warning) for e in planned.events] == [(why, True)]
        again = plan(stored(job, planned), pods, later(1))
        assert again.events == ()

    def test_name_of_an_earlier_jobs_pod_is_waited_for(self) -> None:
        job = fresh_job()
        earlier = ended(job, 1, code=1, owner_uid="another")
        first = plan(job, [earlier], NOW)
        assert (first.create, first.create_service) == ((Identity(0, 0),), True)
        assert first.delete == ()
        assert condition(first, "Running") == ("False", "NameTaken")
        assert "digits-0-1" in first.status.message
        assert condition(first, "PodsCreated") == ("", "")
        assert first.requeue_at is None, "the watch reports deleted pods"
        waiting = plan(stored(job, first), [pod(job, 0), earlier], later(5))
        assert (waiting.create, waiting.create_service) == ((), False)
        freed = plan(stored(job, waiting), [pod(job, 0)], later(10))
        assert (freed.create, freed.create_service) == ((Identity(1, 0),), False)

    def test_other_pods_of_an_earlier_job_are_left_alone(self) -> None:
        job = fresh_job()
        earlier = ended(job, 0, code=1, attempt=3, owner_uid="another")
        planned = plan(job, [earlier], NOW)
        assert len(planned.create) == 2
        assert planned.delete == ()
        assert condition(planned, "PodsCreated") == ("True", "Created")

    def test_host_name_of_an_earlier_jobs_pod_is_waited_for(
        self,
    ) -> None:
        job = fresh_job()
        earlier = pod(job, 1, replacement=1, owner_uid="another", phase="Running", deleting=True)
        planned = plan(job, [earlier], NOW)
        assert planned.create == (Identity(0, 0),)
        assert condition(planned, "Running") == ("False", "NameTaken")
        assert "digits-0-1-r1" in planned.status.message
        for gone in (replace(earlier, serving=False), replace(earlier, phase="Failed")):
            assert len(plan(job, [gone], NOW).create) == 2

    def test_job_being_deleted_is_left_alone(self) -> None:
        job = replace(fresh_job(), deleting=True)
        assert does_nothing(plan(job, [ended(job, 0, code=1)], NOW))


class TestSuccess:
    def test_all_completed_pods_complete_the_job(self) -> None:
        job, _ = running_job()
        pods = [ended(job, 0, code=0, message="\nloss 0.1\n  done\n"), ended(job, 1, code=0)]
        planned = plan(job, pods, later(60))
        assert planned.decided
        assert (planned.create, planned.delete) == ((), ())
        assert (planned.status.phase, planned.status.reason) == ("Succeeded", "Completed")
        message = "all 2 pods completed; rank 0 says: loss 0.1 done"
        assert planned.status.message == message
        assert planned.status.completion_time == later(60)
        assert condition(planned, "Running")[0] == "False"
        assert event_reasons(planned) == ["Succeeded"]

    def test_native_side_cars_are_left_to_the_kubelet(self) -> None:
        job, _ = running_job()
        pods = [ended(job, index, code=0, phase="Running") for index in (0, 1)]
        job = stored(job, plan(job, pods, later(60)))
        assert job.status.phase == "Succeeded"
        planned = plan(job, pods, later(1000))
        assert (planned.delete, planned.requeue_at) == ((), None)

    @pytest.mark.parametrize("policy", ["Running", "All", "None"])
    @pytest.mark.parametrize("code", [0, 1])
    def test_endless_side_car_is_deleted_after_20_seconds(self, code: int, policy: str) -> None:
        job, _ = running_job(cleanPodPolicy=policy, restart={"maxRestarts": 0})
        held = ended(job, 0, code=code, at=50, phase="Running", held_by="logs")
        pods = [held, ended(job, 1, code=0, at=60)]
        job = stored(job, plan(job, pods, later(60)))
        assert job.status.finished
        soon, late = plan(job, pods, later(79)), plan(job, pods, later(80))
        assert soon.requeue_at == (later(80) if policy == "Running" else None)
        doomed = {"Running": (held.key,), "All": tuple(pod.key for pod in pods), "None": ()}
        assert soon.delete == (doomed["All"] if policy == "All" else ())
        assert late.delete == doomed[policy]

    def test_clock_ahead_holds_no_pod_for_long(self) -> None:
        job, _ = running_job()
        pods = [ended(job, i, code=0, at=9000, phase="Running", held_by="logs") for i in (0, 1)]
        job = stored(job, plan(job, pods, later(60)))
        assert plan(job, pods, later(61)).requeue_at == later(91)

    def test_success_policy_rank_0_completes_the_job(self) -> None:
        job, pods = running_job(successPolicy="Rank0", replicas=3)
        pods = [pods[0], pods[1], ended(job, 2, code=0)]
        assert does_nothing(plan(job, pods, later(60)))
        failed = [pods[0], ended(job, 1, code=1), pods[2]]
        assert plan(job, failed, later(60)).status.phase == "Restarting"
        for worker in (pods[1], ended(job, 1, code=1)):
            over = [ended(job, 0, code=0, message="loss 0.1"), worker, pods[2]]
            planned = plan(job, over, later(60))
            assert planned.status.phase == "Succeeded"
            message = "rank 0's pod completed (spec.successPolicy); rank 0 says: loss 0.1"
            assert planned.status.message == message
        done = stored(job, plan(job, [over[0], pods[1], pods[2]], later(60)))
        assert plan(done, [over[0], pods[1], pods[2]], later(61)).delete == (pods[1].key,)

    def test_deleted_rank_0_that_completed_completes_the_job(self) -> None:
        job, pods = running_job(successPolicy="Rank0")
        job = with_status(job, completed_indexes="0")
        assert plan(job, pods[1:], later(60)).status.phase == "Succeeded"

    def test_success_found_after_the_deadline_is_success(self) -> None:
        job, _ = running_job(activeDeadlineSeconds=100)
        planned = plan(job, [ended(job, i, code=0, at=90) for i in (0, 1)], later(500))
        assert planned.status.phase == "Succeeded"


class TestFinished:
    @pytest.mark.parametrize(
        ("policy", "deleted"),
        [
            ("Running", ["digits-0-1"]),
            ("All", ["digits-0-0", "digits-0-1"]),
            ("None", []),
        ],
    )
    def test_clean_pod_policy(self, policy: str, deleted: list[str]) -> None:
        job, pods = running_job(cleanPodPolicy=policy, restart={"maxRestarts": 0})
        pods = [ended(job, 0, code=1), pods[1]]
        job = stored(job, plan(job, pods, later(60)))
        assert job.status.phase == "Failed"
        planned = plan(job, pods, later(61))
        assert [name for _, name in planned.delete] == deleted
        assert (planned.decided, planned.create, planned.fence) == (False, (), ())

    def test_pods_of_earlier_attempts_are_always_deleted(self) -> None:
        job, _ = running_job(cleanPodPolicy="None")
        job = stored(job, plan(job, [ended(job, i, code=0) for i in (0, 1)], later(60)))
        job = with_status(job, attempt=1)
        straggler = ready(job, 0, attempt=0)
        assert plan(job, [straggler], later(61)).delete == (straggler.key,)

    def test_time_to_live(self) -> None:
        job, _ = running_job(ttlSecondsAfterFinished=100)
        pods = [ended(job, i, code=0) for i in (0, 1)]
        job = stored(job, plan(job, pods, later(60)))
        planned = plan(job, pods, later(159))
        assert (planned.delete_job, planned.requeue_at) == (False, later(160))
        assert plan(job, pods, later(160)).delete_job

    @pytest.mark.parametrize("ending", ["Succeeded", "Failed"])
    def test_finished_job_never_changes(self, ending: str) -> None:
        job, pods = running_job(restart={"maxRestarts": 0}, activeDeadlineSeconds=100)
        last = [ended(job, i, code=int(ending == "Failed")) for i in (0, 1)]
        job = stored(job, plan(job, last, later(60)))
        assert job.status.phase == ending
        final = job.status.conditions, job.status.phase, job.status.reason, job.status.message
        suspended = edited(job, suspend=True)
        other_spec = edited(job, template=template(container(image="other")))
        for after, seen in (
            (job, []),
            (job, last),
            (job, pods),
            (job, [ended(job, 0, code=64)]),
            (suspended, last),
            (replace(job, restart_requested="1"), last),
            (other_spec, last),
        ):
            planned = plan(after, seen, later(1000))
            assert (planned.decided, planned.create, planned.events) == (False, (), ())
            status = planned.status
            assert (status.conditions, status.phase, status.reason, status.message) == final
