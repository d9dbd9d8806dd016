from typing import Any

import pytest
from ddp_operator.api.constants import ANNOTATION_RESTART_REQUESTED
from ddp_operator.job.pods.state import PodState
from ddp_operator.views import changes, listing, waiting
from ddp_operator.views.changes import RefusedError
from ddp_operator.views.job.diagnosis import diagnose
from ddp_operator.views.job.pods import Pods
from ddp_operator.views.job.screen import screen
from ddp_operator.views.job.snapshot import JobSnapshot
from ddp_operator.views.text import columns

from tests.good_manifests import Json, container, template
from tests.unit.cli.jobs import ESCAPES, at, failure, seen, stored, training
from tests.unit.job import builders
from tests.unit.job.builders import later

NOW = later(1200)


def shown(manifest: Json, *pods: PodState, width: int = 80) -> str:
    job = JobSnapshot.read(manifest)
    return "\n".join(screen(job, Pods.of(job, pods), NOW, width=width))


def told(manifest: Json, *pods: PodState) -> str:
    job = JobSnapshot.read(manifest)
    return "\n".join(diagnose(job, Pods.of(job, pods), NOW).lines(80))


def parsed(manifest: Json) -> Any:
    job = JobSnapshot.read(manifest).parsed
    assert job is not None
    return job


def table(*manifests: Json, wide: bool = False) -> list[str]:
    rows = [
        listing.row(JobSnapshot.read(job), NOW, wide=wide, namespaces=False) for job in manifests
    ]
    return columns([listing.heading(wide=wide, namespaces=False), *rows])


class TestList:
    def test_a_job_is_a_row(self) -> None:
        assert table(training()) == [
            "NAME    PHASE    READY  RESTARTS  STEP      LEFT  AGE",
            "digits  Running  2/2    1         500/2000  50m   20m",
        ]

    def test_wide_tells_more(self) -> None:
        heading, row = table(training(), wide=True)
        assert heading.split()[-5:] == ["LOSS", "TRAINING", "REASON", "ACCELERATOR", "PLACEMENT"]
        assert "0.1235  83%       PodsReady  -            2 hosts, 1 block" in row

    def test_a_new_job_has_no_numbers_yet(self) -> None:
        assert table(builders.stored_job())[1].split() == [
            *("digits", "Pending", "-", "0", "-", "-", "20m")
        ]

    def test_one_that_goes_says_so(self) -> None:
        job = training()
        job["metadata"]["deletionTimestamp"] = at(1190)
        assert "Deleting" in table(job)[1]

    def test_ordinary_names_fit_a_terminal(self) -> None:
        job = training(restarts=12)
        job["status"]["phase"] = "Restarting"
        job["metadata"]["name"] = "a-name-of-twenty-five-sig"
        assert max(map(len, table(job))) <= 80


SLOW: Json = {
    "rank": 3, "pod": "digits-0-3", "node": "node-b", "ratio": 1.75, "secondsPerStep": 0.5,
    "since": at(600), "notReplaced": "no launcher answers",
}  # fmt: skip


class TestStatus:
    def test_a_slow_rank_has_its_place_and_its_cost(self) -> None:
        text = shown(training(slowRank=SLOW), width=200)
        assert "rank 3, pod digits-0-3, node node-b, for 10m" in text
        assert "1.75 times the mean of the others, 0.5 s more" in text
        ended = training(slowRank=SLOW)
        ended["status"] |= stored("Succeeded", "Completed")["status"]
        assert "digits-0-3" not in shown(ended, width=200)

    def test_one_screen(self) -> None:
        job = parsed(training())
        pods = [builders.ready(job, index) for index in range(2)]
        assert shown(training(failures=[failure()]), *pods).splitlines() == [
            "digits in namespace research, 20m old",
            "",
            "phase       Running for 20m",
            "reason      PodsReady: all 2 pods are ready",
            "progress    step 500 of 2000 (25%), epoch 3, loss 0.1235, 8123 samples/s, about",
            "            50m left",
            "            last step 3s ago",
            "ranks       RR  2 ready (R)",
            "attempt     0; restarts 1 of 3, disruptions 2 (not charged)",
            "goodput     83% training: pending 1m, starting 40s, training 16m, lost 1m40s; 25",
            "            steps lost",
            "checkpoint  step 450, 1m40s ago, /checkpoints/step-00000450",
            "placement   2 hosts, 1 block",
            "failures    19m ago: pod digits-0-1 (node rank 1) exited with code 1 (Error) on",
            "            node node-b: ValueError: bad batch [RestartGang, charged]",
        ]

    def test_a_spare_that_has_taken_a_place_stands_in_it(self) -> None:
        manifest = training()
        manifest["spec"] |= {"spares": 2, "restart": {"scope": "Pod"}}
        manifest["status"]["world"] = {"generation": 1, "size": 2, "members": "3,1"}
        job = parsed(manifest)
        pods = [
            builders.pod(job, 0, replacement=1),
            builders.ready(job, 1),
            builders.ready(job, 2),
            builders.ready(job, 3),
            builders.ended(job, 0, code=137),
        ]
        text = " ".join(shown(manifest, *pods).split())
        assert "RR 2 ready (R), 2 spares (1 waiting, 1 ready), 1 old pod still" in text
        seen_job = JobSnapshot.read(manifest)
        assert Pods.of(seen_job, pods).current[0].key.name == pods[3].key.name

    def test_the_last_steps_of_a_job_that_ended_well_may_not_have_been_seen(self) -> None:
        manifest = training()
        manifest["status"] |= {"phase": "Succeeded"}
        assert "step 500 of 2000" in shown(manifest)
        assert "the last report; the job completed after it" in shown(manifest)
        manifest["status"]["progress"] |= {"step": 2000}
        assert "the last report" not in shown(manifest)

    def test_what_is_wrong_with_a_spec_is_said_once(self) -> None:
        manifest = stored("Failed", "InvalidSpec", "spec.replicas: too few", spec={"replicas": 0})
        assert "reason   InvalidSpec: spec.replicas: too few" in shown(manifest)
        assert "this release cannot read it" not in shown(manifest)

    def test_each_state_of_a_pod_has_its_mark(self) -> None:
        manifest = stored("Starting", "PodsStarting", spec={"replicas": 9})
        manifest["status"]["completedIndexes"] = "8"
        job = parsed(manifest)
        pods = [
            builders.ready(job, 0),
            builders.ended(job, 1, code=0),
            builders.pod(job, 2, node="node-a"),
            builders.pod(job, 3, waiting="Unschedulable"),
            builders.pod(job, 4, node="node-a", waiting="ErrImagePull"),
            builders.ready(job, 5, deleting=True),
            builders.ended(job, 6, code=1),
        ]
        assert "RDsw!EF.D  1 ready (R), 2 done (D), 1 starting (s)," in shown(manifest, *pods)

    def test_only_the_newest_pods_of_this_very_job_count(self) -> None:
        manifest = stored("Running", attempt=1)
        job = parsed(manifest)
        pods = [
            builders.pod(job, 0, replacement=1),
            builders.ready(job, 0),
            builders.ready(job, 1, attempt=0),
            builders.ready(job, 1, owner_uid="another"),
        ]
        text = shown(manifest, *pods)
        assert "w.  1 waiting (w), 1 missing (.), 2 old pods still there" in text

    def test_marks_of_many_pods_are_bounded(self) -> None:
        manifest = stored("Pending", spec={"replicas": 10_000})
        lines = shown(manifest).splitlines()
        assert len(lines) < 24
        assert any(line.endswith("and 9600 more") for line in lines)
        assert any("10000 missing (.)" in line for line in lines)

    def test_pods_of_several_ranks_say_so(self) -> None:
        text = shown(stored("Running", spec={"nprocPerNode": 8}))
        assert "pods" in text
        assert "8 ranks each" in text

    def test_what_pods_wait_for_is_said_once_for_all_of_them(self) -> None:
        manifest = stored("Pending", "Unschedulable", spec={"replicas": 3})
        job = parsed(manifest)
        why: Json = {"waiting": "Unschedulable", "waiting_message": "0/3 nodes are available"}
        text = shown(manifest, *(builders.pod(job, index, **why) for index in range(3)))
        assert "3 pods, such as digits-0-0: Unschedulable: 0/3 nodes are available" in text

    def test_the_pause_before_a_start_is_awaited(self) -> None:
        text = shown(stored("Restarting", "Error", nextStartTime=at(1245)))
        assert "waits for  the next start in 45s (restart backoff)" in text

    def test_a_stopped_job_misses_no_pods(self) -> None:
        text = shown(stored("Suspended", "Suspended", spec={"suspend": True}))
        assert "pods     none" in text
        assert "missing" not in text

    def test_a_job_that_no_operator_looks_at_says_so(self) -> None:
        assert "no operator has handled this job in 20m" in shown(builders.stored_job())
        young = builders.stored_job()
        young["metadata"]["creationTimestamp"] = at(1195)
        assert "no operator has" not in shown(young)

    def test_a_spec_of_another_release_is_no_error(self) -> None:
        text = shown(stored("Running", spec={"warpDrive": True}))
        assert "Running" in text
        assert "spec.warpDrive: unknown field" in text

    def test_a_status_of_another_release_is_no_error(self) -> None:
        assert "Pending" in shown(stored("Running", restarts="many"))

    @pytest.mark.parametrize("make", [shown, told])
    @pytest.mark.parametrize("phase", ["Pending", "Running", "Restarting", "Failed", "Succeeded"])
    def test_hostile_words_are_harmless(self, make: Any, phase: str) -> None:
        hostile = ESCAPES + "word " * 2000
        manifest = stored(
            phase,
            hostile,
            hostile,
            placement=hostile,
            checkpoint={"step": 1, "path": hostile},
            excludedNodes=[hostile] * 100,
            failures=[failure(message=hostile, node=hostile, pod=hostile, reason=hostile)] * 10,
        )
        job = parsed(manifest)
        pods = [
            builders.pod(job, 0, waiting=hostile[:256], waiting_message=hostile[:4096]),
            builders.ended(job, 1, code=1, message=hostile[:4096], reason=hostile[:256]),
        ]
        text = make(manifest, *pods)
        assert all(line.isprintable() for line in text.splitlines())
        assert len(text) < 12_000
        assert max(map(len, text.splitlines())) <= 80


class TestWhy:
    def test_checkpoints_that_are_each_pods_own_come_with_what_to_do(self) -> None:
        command = ["python", "train.py", "$(DDP_CHECKPOINT_DIR)/s.pt"]
        named = template(container(command=command))
        said = "/checkpoints is on each pod's own disk"
        assert said in told(training(spec={"template": named}))
        shared = {"template": named, "checkpoint": {"gcsBucket": "shared"}}
        assert said not in told(training(spec=shared))
        assert said not in told(training())
        noted = training(bookkeeping={"savedInPod": 0})
        assert said in told(noted), "where the launcher has seen one"

    def test_a_training_that_goes_well(self) -> None:
        text = told(training())
        assert text.startswith("digits is training: all 2 pods are ready.")
        assert "step 500, 3s ago" in text
        assert "what to do" not in text

    def test_a_training_that_makes_no_step(self) -> None:
        old = {"step": 5, "updatedAt": at(100), "lastStepTime": at(100)}
        text = told(training(progress=old))
        assert "has completed no step for 18m" in text
        assert "spec.progressDeadlineSeconds" in text

    @pytest.mark.parametrize(
        ("class_", "advised"),
        [("Infrastructure", "check the node"), ("Application", "read the stacks of all ranks")],
    )
    def test_a_hang_leads_to_its_node_or_its_stacks(self, class_: str, advised: str) -> None:
        hang = failure(reason="NoProgress", exitCode=None, **{"class": class_})
        assert advised in told(stored("Restarting", "NoProgress", failures=[hang]))

    def test_the_place_of_a_slow_rank_and_its_cost_are_told(self) -> None:
        text = told(training(slowRank=SLOW))
        assert text.startswith("digits is slow: rank 3 delays the others in each step.")
        assert "rank 3, pod digits-0-3, node node-b, for 10m" in text
        assert "1.75 times the mean of the others, 0.5 s more" in text
        assert "not replaced: no launcher answers" in text
        assert "check the node: GPU clocks" in text

    def test_a_failed_job_names_rank_node_and_last_words(self) -> None:
        manifest = stored(
            *("Failed", "BackoffLimitExceeded", "all 3 restarts are used up"),
            failures=[failure(pod="earlier"), failure()],
            completionTime=at(1140),
        )
        text = told(manifest, builders.ended(parsed(manifest), 1, code=1))
        assert text.startswith(
            "digits failed 1m ago, BackoffLimitExceeded: all 3 restarts are used up"
        )
        assert "pod digits-0-1 (node rank 1) exited with code 1 (Error) on" in text
        assert "earlier" not in text
        assert "last words\n  Traceback\n    File x\n  ValueError: bad batch" in text
        assert "kubectl logs digits-0-1" in text

    @pytest.mark.parametrize(
        ("changes", "remedy"),
        [
            ({"reason": "OOMKilled", "exitCode": 137}, "a larger memory limit"),
            ({"exitCode": 64, "class": "Configuration"}, "correct the command"),
            ({"class": "Infrastructure", "reason": "XID"}, "check the node"),
            ({"class": "Disruption", "reason": "Evicted"}, "nothing: the cluster took"),
            ({"message": "torch.OutOfMemoryError: CUDA out of memory"}, "use smaller batches"),
            ({"pod": "digits-0-7"}, "its pod and log are gone"),
        ],
    )
    def test_what_to_do_depends_on_the_failure(self, changes: Json, remedy: str) -> None:
        assert remedy in told(stored("Restarting", "Error", failures=[failure(**changes)]))

    def test_ignored_failures_are_no_cause(self) -> None:
        found = [failure(pod="the-cause"), failure(pod="ignored", action="Ignore")]
        text = told(stored("Failed", "Error", failures=found))
        assert "the-cause" in text
        assert "ignored" not in text

    def test_a_missing_image(self) -> None:
        manifest = stored("Starting", "ErrImagePull", "pod digits-0-1 cannot start")
        job = parsed(manifest)
        stuck: Json = {"waiting": "ErrImagePull", "waiting_message": "no such image", "node": "n"}
        text = told(manifest, builders.pod(job, 1, **stuck))
        assert "pod digits-0-1: ErrImagePull: no such image" in text
        assert "check the image's name and tag" in text

    def test_the_first_pod_that_failed_is_blamed_before_the_operator_has_spoken(self) -> None:
        manifest = stored("Pending", "PodsStarting")
        job = parsed(manifest)
        pods = [
            builders.ended(job, 0, code=75, at=20, message="lost a peer"),
            builders.ended(job, 1, code=1, at=10, message="ValueError: first"),
        ]
        text = told(manifest, *pods)
        assert "last words\n  ValueError: first" in text
        assert "lost a peer" not in text

    def test_a_stopped_job_can_be_resumed(self) -> None:
        text = told(stored("Suspended", "Suspended", spec={"suspend": True}))
        assert "kubectl ddp resume digits" in text

    def test_a_job_that_cannot_go_names_what_holds_it(self) -> None:
        manifest = training()
        manifest["metadata"] |= {"deletionTimestamp": at(1190), "finalizers": ["example.com/x"]}
        text = told(manifest)
        assert text.startswith("digits is being deleted.")
        assert "example.com/x" in text

    def test_no_operator(self) -> None:
        assert told(builders.stored_job()).startswith(
            "digits is waiting for an operator: no operator has"
        )

    def test_a_success(self) -> None:
        text = told(stored("Succeeded", "Completed", "all 2 pods completed"))
        assert text == "digits has succeeded 20m ago: all 2 pods completed."


class TestWait:
    @pytest.mark.parametrize(
        ("phase", "goal", "code"),
        [
            ("Succeeded", "succeeded", 0),
            ("Succeeded", "finished", 0),
            ("Succeeded", "failed", 3),
            ("Failed", "succeeded", 3),
            ("Failed", "failed", 0),
            ("Failed", "finished", 0),
            ("Failed", "running", 3),
            ("Failed", "deleted", None),
            ("Running", "running", 0),
            ("Running", "succeeded", None),
            ("Restarting", "running", None),
            ("Suspended", "suspended", 0),
        ],
    )
    def test_a_phase_says_whether_to_go_on(
        self, phase: str, goal: waiting.Goal, code: int | None
    ) -> None:
        assert waiting.verdict(goal, seen(phase)) == code

    def test_a_job_that_is_gone(self) -> None:
        assert waiting.verdict("deleted", None) == 0
        assert waiting.verdict("succeeded", None) == 3

    def test_a_status_older_than_the_spec_proves_nothing(self) -> None:
        manifest = stored("Running")
        manifest["metadata"]["generation"] = 2
        assert waiting.verdict("running", JobSnapshot.read(manifest)) is None


class TestChanges:
    def test_stop(self) -> None:
        change = changes.stop(JobSnapshot.read(training()), NOW)
        assert change.patch == {"spec": {"suspend": True}}
        assert "deletes its 2 pods" in change.says[0]

    @pytest.mark.parametrize("change", [changes.stop, changes.restart, changes.delete])
    def test_checkpoints_that_go_with_the_pods_are_told_of(self, change: Any) -> None:
        assert "/checkpoints is lost" in " ".join(change(JobSnapshot.read(training()), NOW).says)

    @pytest.mark.parametrize("change", [changes.stop, changes.restart, changes.delete])
    def test_checkpoints_on_a_volume_stay(self, change: Any) -> None:
        kept = {"checkpoint": {"persistentVolumeClaim": "shared"}}
        text = " ".join(change(JobSnapshot.read(training(spec=kept)), NOW).says)
        assert "lost" not in text
        assert "of step 450, 1m40s ago" in text

    @pytest.mark.parametrize("where", ["/checkpoints", "/checkpoints/", "/"])
    def test_checkpoints_on_a_volume_of_the_template_stay(self, where: str) -> None:
        mounted = container(volumeMounts=[{"name": "shared", "mountPath": where}])
        job = JobSnapshot.read(training(spec={"template": template(mounted)}))
        assert "lost" not in " ".join(changes.stop(job, NOW).says)

    def test_resume(self) -> None:
        stopped = seen("Suspended", spec={"suspend": True})
        assert changes.resume(stopped, NOW).patch == {"spec": {"suspend": False}}

    def test_restart_asks_by_an_annotation_that_differs_each_time(self) -> None:
        job = JobSnapshot.read(training())
        first, second = changes.restart(job, NOW).patch, changes.restart(job, later(1200.5)).patch
        assert first["metadata"]["annotations"].keys() == {ANNOTATION_RESTART_REQUESTED}
        assert first != second

    def test_scale(self) -> None:
        stopped = seen("Suspended", spec={"suspend": True})
        for job in (stopped, seen("Starting", "ErrImagePull")):
            assert changes.scale(job, 4).patch == {"spec": {"replicas": 4}}

    def test_what_would_do_nothing_is_refused_with_what_helps(self) -> None:
        running, stopped = JobSnapshot.read(training()), seen("Suspended", spec={"suspend": True})
        ended = seen("Failed", "Error")
        with pytest.raises(RefusedError, match="already stopped"):
            changes.stop(stopped, NOW)
        with pytest.raises(RefusedError, match="not stopped"):
            changes.resume(running, NOW)
        with pytest.raises(RefusedError, match="kubectl ddp resume digits"):
            changes.restart(stopped, NOW)
        with pytest.raises(RefusedError, match="has not started"):
            changes.restart(seen("Pending", startTime=None), NOW)
        with pytest.raises(RefusedError, match="kubectl ddp stop digits"):
            changes.scale(running, 4)
        with pytest.raises(RefusedError, match="already has 2 replicas"):
            changes.scale(stopped, 2)
        for change in (changes.stop, changes.resume, changes.restart):
            with pytest.raises(RefusedError, match="has ended"):
                change(ended, NOW)
