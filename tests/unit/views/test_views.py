from dataclasses import replace
from typing import Any

import pytest
from ddp_client.text import columns
from ddp_client.views import changes, listing, waiting
from ddp_client.views.job.diagnosis import diagnose
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.screen import screen
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.refused import RefusedError
from ddp_operator.api.constants import ANNOTATION_RESTART_REQUESTED
from ddp_operator.job.pods.state import PodState

from tests.good_manifests import Json, container, template
from tests.unit.cli.jobs import ESCAPES, at, failure, seen, stored, training
from tests.unit.job import builders
from tests.unit.job.builders import later

NOW = later(1200)


def shown(manifest: Json, *pods: PodState, width: int = 80) -> str:
    job = JobSnapshot.read(manifest)
    return "\n".join(screen(job, Pods.of(job, pods), NOW, width=width))


def why(manifest: Json, *pods: PodState) -> str:
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

    def test_wide_has_more_columns(self) -> None:
        heading, row = table(training(), wide=True)
        assert heading.split()[-5:] == ["LOSS", "TRAINING", "REASON", "ACCELERATOR", "PLACEMENT"]
        assert "0.1235  83%       PodsReady  -            2 hosts, 1 block" in row

    def test_new_job_has_no_numbers(self) -> None:
        assert table(builders.stored_job())[1].split() == [
            *("digits", "Pending", "-", "0", "-", "-", "20m")
        ]

    def test_deleted_job_is_deleting(self) -> None:
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
    def test_slow_rank_is_shown_with_pod_and_cost(self) -> None:
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

    def test_spare_is_shown_in_the_place_it_took(self) -> None:
        manifest = training()
        manifest["spec"] |= {"spares": 2, "restart": {"scope": "Pod"}}
        manifest["status"]["world"] = {"generation": 1, "members": "3,1"}
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

    def test_last_report_of_a_succeeded_job_is_marked(self) -> None:
        manifest = training()
        manifest["status"] |= {"phase": "Succeeded"}
        assert "step 500 of 2000" in shown(manifest)
        assert "the last report; the job completed after it" in shown(manifest)
        manifest["status"]["progress"] |= {"step": 2000}
        assert "the last report" not in shown(manifest)

    def test_invalid_spec_is_explained_once(self) -> None:
        manifest = stored("Failed", "InvalidSpec", "spec.replicas: too few", spec={"replicas": 0})
        assert "reason   InvalidSpec: spec.replicas: too few" in shown(manifest)
        assert "this release cannot read it" not in shown(manifest)

    def test_mark_of_each_pod_state(self) -> None:
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

    def test_only_the_newest_pods_of_this_job_count(self) -> None:
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

    def test_number_of_ranks_per_pod_is_shown(self) -> None:
        text = shown(stored("Running", spec={"nprocPerNode": 8}))
        assert "pods" in text
        assert "8 ranks each" in text

    def test_common_cause_of_waiting_is_shown_once(self) -> None:
        manifest = stored("Pending", "Unschedulable", spec={"replicas": 3})
        job = parsed(manifest)
        why: Json = {"waiting": "Unschedulable", "waiting_message": "0/3 nodes are available"}
        text = shown(manifest, *(builders.pod(job, index, **why) for index in range(3)))
        assert "3 pods, such as digits-0-0: Unschedulable: 0/3 nodes are available" in text

    def test_backoff_is_shown(self) -> None:
        text = shown(stored("Restarting", "Error", nextStartTime=at(1245)))
        assert "waits for  the next start in 45s (restart backoff)" in text

    def test_suspended_job_misses_no_pods(self) -> None:
        text = shown(stored("Suspended", "Suspended", spec={"suspend": True}))
        assert "pods     none" in text
        assert "missing" not in text

    def test_missing_operator_is_shown(self) -> None:
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

    @pytest.mark.parametrize("make", [shown, why])
    @pytest.mark.parametrize("phase", ["Pending", "Running", "Restarting", "Failed", "Succeeded"])
    def test_hostile_texts_are_harmless(self, make: Any, phase: str) -> None:
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
    def test_checkpoints_on_own_disks_get_a_remedy(self) -> None:
        command = ["python", "train.py", "$(DDP_CHECKPOINT_DIR)/s.pt"]
        named = template(container(command=command))
        said = "/checkpoints is on each pod's own disk"
        assert said in why(training(spec={"template": named}))
        shared = {"template": named, "checkpoint": {"gcsBucket": "shared"}}
        assert said not in why(training(spec=shared))
        assert said not in why(training())
        noted = training(bookkeeping={"savedInPod": 0})
        assert said in why(noted), "where the launcher has seen one"

    def test_rank_that_waited_at_localhost_is_named(self) -> None:
        words = "The client socket has timed out after 600000ms while trying to connect to ({}, 9)."
        at = [failure(message=words.format(host)) for host in ("localhost", "digits-0-0.digits")]
        wrong, right = (why(stored("Failed", "X", failures=[each])) for each in at)
        advised = "waited for rank 0 at localhost, which is that pod itself"
        assert advised in " ".join(wrong.split())
        assert "which is that pod itself" not in " ".join(right.split())

    def test_rank_that_waits_at_localhost_is_named_until_a_step(self) -> None:
        remark = "rank 0 listens on port 12355 and reaches it at localhost"
        notes = {"remark": remark, "remarked": 0}
        waits = stored("Running", "PodsReady", "all 2 pods are ready", bookkeeping=notes)
        job = parsed(waits)
        text = " ".join(why(waits, builders.ready(job, 0), builders.ready(job, 1)).split())
        assert f"- pod digits-0-0: {remark}" in text
        assert "remove the line of the script that sets MASTER_ADDR" in text
        assert remark not in why(training(bookkeeping=notes))

    def test_words_of_the_cluster_are_no_last_words(self) -> None:
        message = "the cluster or a user deleted the pod"
        lost = failure(message=message, **{"exitCode": None})
        text = why(stored("Restarting", "Disrupted", failures=[lost]))
        assert message in " ".join(text.split())
        assert "last words" not in text

    def test_failed_side_car_is_named_with_its_last_words(self) -> None:
        failure = "container proxy ended with code 3: no such upstream"
        job = parsed(training())
        pods = [replace(builders.ready(job, i), side_car_failure=failure) for i in (0, 1)]
        text = " ".join(why(training(), *pods).split())
        assert f"- pod {pods[0].key.name}: {failure}" in text
        assert text.count(failure) == 1

    def test_doubtful_command_is_evidence(self) -> None:
        named = template(container(command=["torchrun", "--nproc_per_node=2", "train.py"]))
        text = why(training(spec={"template": named}))
        assert "the command: torchrun --nproc_per_node=2: set spec.nprocPerNode to 2" in text

    def test_healthy_training(self) -> None:
        text = why(training())
        assert text.startswith("digits is training: all 2 pods are ready.")
        assert "step 500, 3s ago" in text
        assert "what to do" not in text

    def test_training_without_steps(self) -> None:
        old = {"step": 5, "updatedAt": at(100), "lastStepTime": at(100)}
        text = why(training(progress=old))
        assert "has completed no step for 18m" in text
        assert "spec.progressDeadlineSeconds" in text

    def test_work_after_the_last_step(self) -> None:
        last = {"step": 5, "totalSteps": 5, "updatedAt": at(460), "lastStepTime": at(460)}
        text = why(training(progress=last))
        assert text.startswith("digits: the script works after its last step, for 12m")
        assert "spec.activeDeadlineSeconds" in text
        assert "hangs" not in text
        earlier = why(training(progress={**last, "updatedAt": at(-100)}))
        assert "after its last step" not in earlier, "a restarted job may train it again"

    @pytest.mark.parametrize(
        ("class_", "advised"),
        [("Infrastructure", "check the node"), ("Application", "read the stacks of all ranks")],
    )
    def test_hang_refers_to_its_node_or_stacks(self, class_: str, advised: str) -> None:
        hang = failure(reason="NoProgress", exitCode=None, **{"class": class_})
        assert advised in why(stored("Restarting", "NoProgress", failures=[hang]))

    def test_why_names_the_slow_rank_and_its_cost(self) -> None:
        text = why(training(slowRank=SLOW))
        assert text.startswith("digits is slow: rank 3 delays the others in each step.")
        assert "rank 3, pod digits-0-3, node node-b, for 10m" in text
        assert "1.75 times the mean of the others, 0.5 s more" in text
        assert "not replaced: no launcher answers" in text
        assert "check the node: GPU clocks" in text

    def test_failed_job_names_rank_node_and_last_output(self) -> None:
        manifest = stored(
            *("Failed", "BackoffLimitExceeded", "all 3 restarts are used up"),
            failures=[failure(pod="earlier"), failure()],
            completionTime=at(1140),
        )
        text = why(manifest, builders.ended(parsed(manifest), 1, code=1))
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
    def test_remedy_depends_on_the_failure(self, changes: Json, remedy: str) -> None:
        assert remedy in why(stored("Restarting", "Error", failures=[failure(**changes)]))

    @pytest.mark.parametrize(
        ("class_", "message", "meaning", "remedy"),
        [
            (
                "Application",
                "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. ",
                "/dev/shm is too small",
                "raise the container's memory limit",
            ),
            (
                "Infrastructure",
                "RuntimeError: CUDA error: uncorrectable ECC error encountered",
                "the GPU's memory has errors that ECC cannot correct",
                "drain the node",
            ),
            (
                "Application",
                "Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n",
                "the image lacks a Python package",
                "install the package in the image",
            ),
        ],
    )
    def test_known_error_is_explained(
        self, class_: str, message: str, meaning: str, remedy: str
    ) -> None:
        failed = failure(message=message, **{"class": class_})
        text = why(stored("Restarting", "Error", failures=[failed]))
        evidence, _, advice = " ".join(text.split()).partition("what to do")
        assert f"a known error: {meaning}" in evidence
        assert remedy in advice
        assert "kubectl logs" not in advice

    def test_known_text_does_not_replace_advice_for_a_hang(self) -> None:
        watchdog = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)"
        hang = failure(reason="NoProgress", exitCode=None, message=watchdog)
        text = " ".join(why(stored("Restarting", "NoProgress", failures=[hang])).split())
        assert "a known error: a collective was not complete in time" in text
        assert "read the stacks of all ranks" in text

    def test_ignored_failure_is_not_the_cause(self) -> None:
        found = [failure(pod="the-cause"), failure(pod="ignored", action="Ignore")]
        text = why(stored("Failed", "Error", failures=found))
        assert "the-cause" in text
        assert "ignored" not in text

    def test_a_missing_image(self) -> None:
        manifest = stored("Starting", "ErrImagePull", "pod digits-0-1 cannot start")
        job = parsed(manifest)
        stuck: Json = {"waiting": "ErrImagePull", "waiting_message": "no such image", "node": "n"}
        text = why(manifest, builders.pod(job, 1, **stuck))
        assert "pod digits-0-1: ErrImagePull: no such image" in text
        assert "check the image's name and tag" in text

    def test_registry_that_refuses_an_image(self) -> None:
        manifest = stored("Starting", "ErrImagePull", "pod digits-0-1 cannot start")
        refused = (
            "pulling from host gcr.io failed with status code [manifests 1.0.0]: 403 Forbidden"
        )
        stuck: Json = {"waiting": "ErrImagePull", "waiting_message": refused, "node": "n"}
        text = " ".join(why(manifest, builders.pod(parsed(manifest), 1, **stuck)).split())
        assert "a known error: the registry does not let the node pull the image" in text
        assert "grant the nodes' service account Artifact Registry Reader" in text

    def test_first_failed_pod_is_the_cause_without_a_status(self) -> None:
        manifest = stored("Pending", "PodsStarting")
        job = parsed(manifest)
        pods = [
            builders.ended(job, 0, code=75, at=20, message="lost a peer"),
            builders.ended(job, 1, code=1, at=10, message="ValueError: first"),
        ]
        text = why(manifest, *pods)
        assert "last words\n  ValueError: first" in text
        assert "lost a peer" not in text

    def test_suspended_job_suggests_resume(self) -> None:
        text = why(stored("Suspended", "Suspended", spec={"suspend": True}))
        assert "kubectl ddp resume digits" in text

    def test_deleted_job_names_its_finalizers(self) -> None:
        manifest = training()
        manifest["metadata"] |= {"deletionTimestamp": at(1190), "finalizers": ["example.com/x"]}
        text = why(manifest)
        assert text.startswith("digits is being deleted.")
        assert "example.com/x" in text

    def test_no_operator(self) -> None:
        assert why(builders.stored_job()).startswith(
            "digits is waiting for an operator: no operator has"
        )

    def test_a_success(self) -> None:
        text = why(stored("Succeeded", "Completed", "all 2 pods completed"))
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
    def test_verdict_by_phase_and_goal(
        self, phase: str, goal: waiting.Goal, code: int | None
    ) -> None:
        assert waiting.verdict(goal, seen(phase)) == code

    def test_verdict_for_a_deleted_job(self) -> None:
        assert waiting.verdict("deleted", None) == 0
        assert waiting.verdict("succeeded", None) == 3

    def test_outdated_status_gives_no_verdict(self) -> None:
        manifest = stored("Running")
        manifest["metadata"]["generation"] = 2
        assert waiting.verdict("running", JobSnapshot.read(manifest)) is None


class TestChanges:
    def test_stop(self) -> None:
        change = changes.stop(JobSnapshot.read(training()), NOW)
        assert change.patch == {"spec": {"suspend": True}}
        assert "deletes its 2 pods" in change.says[0]

    @pytest.mark.parametrize("change", [changes.stop, changes.restart, changes.delete])
    def test_change_warns_of_lost_checkpoints(self, change: Any) -> None:
        assert "/checkpoints are lost" in " ".join(change(JobSnapshot.read(training()), NOW).says)

    @pytest.mark.parametrize("change", [changes.stop, changes.restart, changes.delete])
    def test_checkpoints_on_a_volume_stay(self, change: Any) -> None:
        kept = {"checkpoint": {"persistentVolumeClaim": "shared"}}
        text = " ".join(change(JobSnapshot.read(training(spec=kept)), NOW).says)
        assert "lost" not in text
        assert "of step 450, 1m40s ago" in text

    def test_resume(self) -> None:
        stopped = seen("Suspended", spec={"suspend": True})
        assert changes.resume(stopped, NOW).patch == {"spec": {"suspend": False}}

    def test_restart_sets_a_unique_annotation(self) -> None:
        job = JobSnapshot.read(training())
        first, second = changes.restart(job, NOW).patch, changes.restart(job, later(1200.5)).patch
        assert first["metadata"]["annotations"].keys() == {ANNOTATION_RESTART_REQUESTED}
        assert first != second

    def test_scale(self) -> None:
        stopped = seen("Suspended", spec={"suspend": True})
        for job in (stopped, seen("Starting", "ErrImagePull")):
            assert changes.scale(job, 4).patch == {"spec": {"replicas": 4}}

    def test_useless_change_is_refused_with_a_remedy(self) -> None:
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
