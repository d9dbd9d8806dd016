"""The contract of the `Cluster` port, with real (small) processes."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_client.local.machine import LocalCluster, Workdir
from ddp_operator.api.constants import LABEL_SERVING
from ddp_operator.job.pods.state import ContainerExit, PodState
from ddp_operator.ports import (
    LOG_END_BYTES,
    AlreadyExistsError,
    ConflictError,
    Event,
    Key,
    Manifest,
    NotFoundError,
)

JOB = Key("default", "job")
POD = Key("default", "job-0-0")
DEADLINE_SECONDS = 30.0


class Recorder:
    """A listener that a test can wait on."""

    def __init__(self) -> None:
        self.jobs: list[Manifest] = []
        self.deleted: list[Key] = []
        self.events: list[Event] = []
        self.lines: list[str] = []
        self._news = asyncio.Event()

    def job_changed(self, job: Manifest) -> None:
        self.jobs.append(job)
        self._news.set()

    def job_deleted(self, job: Key) -> None:
        self.deleted.append(job)
        self._news.set()

    def pods_changed(self, job: Key) -> None:
        assert job == JOB
        self._news.set()

    def pod_logged(self, pod: Key, line: str) -> None:  # noqa: ARG002
        self.lines.append(line)
        self._news.set()

    def event_emitted(self, job: Key, event: Event) -> None:
        assert job == JOB
        self.events.append(event)
        self._news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                self._news.clear()
                await self._news.wait()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def cluster(tmp_path: Path, recorder: Recorder) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(
        workdir=Workdir(tmp_path), listener=recorder, config_maps={}
    ) as cluster:
        yield cluster


def job_manifest() -> Manifest:
    return {"metadata": {"namespace": JOB.namespace, "name": JOB.name}, "spec": {}}


def pod(script: str, *, owner: str = "uid-1", **spec: Any) -> dict[str, Any]:
    """Return a pod that runs a shell script; Kubernetes turns two `$` into one."""
    command = ["sh", "-c", script.replace("$$", "$$$$")]
    trainer = {"name": "trainer", "image": "any", "command": command}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": POD.namespace,
            "name": POD.name,
            "labels": {
                "ddp-operator.io/job-name": JOB.name,
                "ddp-operator.io/replica-index": "0",
                "ddp-operator.io/attempt": "0",
                LABEL_SERVING: "true",
            },
            "ownerReferences": [
                {"kind": "DDPJob", "name": JOB.name, "uid": owner, "controller": True}
            ],
        },
        "spec": {"containers": [trainer | spec.pop("trainer", {})], **spec},
    }


def is_alive(pid: int) -> bool:
    """Return whether a process lives. A zombie that nobody has reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def only_pod(cluster: LocalCluster) -> PodState:
    (found,) = cluster.pods_of(JOB)
    return found


async def ended(cluster: LocalCluster, recorder: Recorder) -> tuple[PodState, ContainerExit]:
    """Wait for the end of the only pod, and return it with its exit."""
    await recorder.until(lambda: cluster.pods_of(JOB)[0].exit)
    pod = await only_pod(cluster)
    assert pod.exit is not None
    return pod, pod.exit


async def test_pod_is_listed_at_once_and_runs_to_its_end(
    cluster: LocalCluster, recorder: Recorder, tmp_path: Path
) -> None:
    await cluster.create_pod(pod('echo one; printf "two" > "$DDP_TERMINATION_LOG"; echo three'))
    assert (await only_pod(cluster)).phase == "Pending"
    done, end = await ended(cluster, recorder)
    assert done.succeeded
    assert (end.code, end.reason, end.message) == (0, "Completed", "two")
    assert not done.ready
    assert recorder.lines == ["one", "three"]
    assert (tmp_path / "logs" / "job-0-0.log").read_text() == "one\nthree\n"
    assert await cluster.log_end(done.key, "trainer") == b"one\nthree\n"
    with pytest.raises(NotFoundError):
        await cluster.log_end(Key("default", "no"), "trainer")


async def test_end_of_a_long_log_is_read(cluster: LocalCluster, recorder: Recorder) -> None:
    await cluster.create_pod(pod("seq 10000; echo end"))
    done, _ = await ended(cluster, recorder)
    end = await cluster.log_end(done.key, "trainer")
    assert len(end) == LOG_END_BYTES
    assert end.endswith(b"\n9999\n10000\nend\n")


async def test_running_is_ready(cluster: LocalCluster, recorder: Recorder) -> None:
    await cluster.create_pod(pod("echo up; exec sleep 1000"))
    await recorder.until(lambda: recorder.lines)
    running = await only_pod(cluster)
    assert (running.phase, running.ready, running.scheduled) == ("Running", True, True)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -SEGV $$", 139), ("kill -KILL $$", 137)]
)
async def test_a_failure_keeps_its_exit_code(
    cluster: LocalCluster, recorder: Recorder, script: str, code: int
) -> None:
    await cluster.create_pod(pod(script))
    failed, end = await ended(cluster, recorder)
    assert failed.failed
    assert not failed.disrupted
    assert (end.code, end.reason) == (code, "Error")


async def test_termination_message_falls_back_to_the_log(
    cluster: LocalCluster, recorder: Recorder
) -> None:
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    await cluster.create_pod(pod("echo Traceback; exit 1", trainer=policy))
    _, end = await ended(cluster, recorder)
    assert end.message == "Traceback\n"


async def test_deleted_pod_gets_sigterm_first(cluster: LocalCluster, recorder: Recorder) -> None:
    await cluster.create_pod(
        pod('trap "echo saving; exit 143" TERM; echo up; while true; do sleep 0.01; done')
    )
    await recorder.until(lambda: "up" in recorder.lines)
    await cluster.delete_pod(POD, grace_seconds=None)
    assert (await only_pod(cluster)).deleting
    await recorder.until(lambda: not cluster.pods_of(JOB))
    assert "saving" in recorder.lines


async def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace_period(
    cluster: LocalCluster, recorder: Recorder
) -> None:
    script = 'trap "echo no" TERM; echo $$; while true; do sleep 0.01; done'
    await cluster.create_pod(pod(script, terminationGracePeriodSeconds=1))
    await recorder.until(lambda: recorder.lines)
    process = int(recorder.lines[0])
    await cluster.delete_pod(POD, grace_seconds=None)
    await recorder.until(lambda: not cluster.pods_of(JOB))
    assert "no" in recorder.lines
    assert not is_alive(process)


async def test_all_processes_of_a_pod_end_with_it(
    cluster: LocalCluster, recorder: Recorder
) -> None:
    """Everything that it started ends with it, even a process in its own session."""
    elsewhere = "setsid sh -c 'echo $$; touch $DDP_TERMINATION_LOG; exec sleep 1000' &"
    started = "until [ -e $DDP_TERMINATION_LOG ]; do sleep 0.01; done"
    await cluster.create_pod(pod(f"{elsewhere} {started}; exit 0"))
    await recorder.until(lambda: cluster.pods_of(JOB)[0].exit)
    assert not is_alive(int(recorder.lines[0]))


async def test_killed_pod_stays_with_exit_code_137(
    cluster: LocalCluster, recorder: Recorder
) -> None:
    await cluster.create_pod(pod("setsid sh -c 'echo $$; exec sleep 1000' & echo $$; wait"))
    await recorder.until(lambda: len(recorder.lines) == 2)
    assert cluster.kill_pod(POD)
    killed, end = await ended(cluster, recorder)
    assert end.code == 137
    assert not killed.disrupted
    assert [is_alive(int(line)) for line in recorder.lines] == [False, False]
    assert not cluster.kill_pod(POD)


async def test_no_process_outlives_the_context(tmp_path: Path, recorder: Recorder) -> None:
    async with LocalCluster(
        workdir=Workdir(tmp_path), listener=recorder, config_maps={}
    ) as cluster:
        await cluster.create_pod(pod('trap "" TERM; echo $$; while true; do sleep 0.01; done'))
        await recorder.until(lambda: recorder.lines)
    assert not is_alive(int(recorder.lines[0]))


async def test_deleting_a_finished_pod_removes_it_at_once(
    cluster: LocalCluster, recorder: Recorder
) -> None:
    await cluster.create_pod(pod("exit 0"))
    await recorder.until(lambda: cluster.pods_of(JOB)[0].exit)
    await cluster.delete_pod(POD, grace_seconds=None)
    assert cluster.pods_of(JOB) == []
    await cluster.delete_pod(POD, grace_seconds=None)  # already gone: no error


async def test_a_pod_deleted_before_it_started_never_runs(
    cluster: LocalCluster, recorder: Recorder
) -> None:
    await cluster.create_pod(pod("echo up"))
    await cluster.delete_pod(POD, grace_seconds=None)
    await recorder.until(lambda: not cluster.pods_of(JOB))
    assert recorder.lines == []


async def test_create_pod_is_idempotent_for_one_owner(
    cluster: LocalCluster,
) -> None:
    await cluster.create_pod(pod("exec sleep 1000"))
    await cluster.create_pod(pod("exec sleep 1000"))
    assert len(cluster.pods_of(JOB)) == 1
    with pytest.raises(AlreadyExistsError, match="another owner"):
        await cluster.create_pod(pod("exec sleep 1000", owner="uid-2"))


async def test_invalid_container_waits_with_its_reason(
    cluster: LocalCluster, recorder: Recorder
) -> None:
    variable = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {}}}
    await cluster.create_pod(pod("exit 0", trainer={"env": [variable]}))
    await recorder.until(lambda: cluster.pods_of(JOB)[0].waiting)
    waiting = await only_pod(cluster)
    assert waiting.waiting == "CreateContainerConfigError"
    assert "valueFrom" in waiting.waiting_message
    assert waiting.phase == "Pending"


async def test_a_command_that_does_not_exist_fails_the_pod(
    cluster: LocalCluster, recorder: Recorder
) -> None:
    await cluster.create_pod(pod("", trainer={"command": ["no-such-program"]}))
    _, end = await ended(cluster, recorder)
    assert (end.code, end.reason) == (128, "StartError")
    assert "no-such-program: no such program" in end.message


async def test_pod_with_too_many_gpus_is_unschedulable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorder: Recorder
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    async with LocalCluster(
        workdir=Workdir(tmp_path), listener=recorder, config_maps={}
    ) as cluster:
        limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
        await cluster.create_pod(pod("exit 0", trainer=limits))
        await recorder.until(lambda: cluster.pods_of(JOB)[0].waiting)
        stuck = await only_pod(cluster)
    assert stuck.waiting == "Unschedulable"
    assert stuck.waiting_message == "this machine has no NVIDIA GPUs, the pod requests 1"
    assert not stuck.scheduled


async def test_pods_on_gpus_take_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorder: Recorder
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    first, second = (
        pod('echo "$CUDA_VISIBLE_DEVICES"; exec sleep 1000', trainer=limits) for _ in range(2)
    )
    second["metadata"]["name"] = "job-0-1"
    async with LocalCluster(
        workdir=Workdir(tmp_path), listener=recorder, config_maps={}
    ) as cluster:
        await cluster.create_pod(first)
        await cluster.create_pod(second)
        await recorder.until(lambda: recorder.lines)
        assert [found.phase for found in cluster.pods_of(JOB)] == ["Running", "Pending"]
        await cluster.delete_pod(POD, grace_seconds=0)
        await recorder.until(lambda: len(recorder.lines) == 2)
        assert recorder.lines == ["GPU-a", "GPU-a"]
        assert [found.key.name for found in cluster.pods_of(JOB)] == ["job-0-1"]


async def test_labels_are_patched(cluster: LocalCluster) -> None:
    await cluster.create_pod(pod("exec sleep 1000"))
    await cluster.patch_pod(POD, {"labels": {LABEL_SERVING: None}})
    assert not (await only_pod(cluster)).serving
    await cluster.patch_pod(Key("default", "gone"), {"labels": {LABEL_SERVING: None}})


async def test_status_is_merged_and_guarded_by_its_resource_version(
    cluster: LocalCluster, recorder: Recorder
) -> None:
    version = cluster.create_job(job_manifest())["metadata"]["resourceVersion"]
    first = await cluster.patch_status(
        JOB, {"a": 1, "b": {"c": 2, "d": 3}}, resource_version=version
    )
    assert first["status"] == {"a": 1, "b": {"c": 2, "d": 3}}
    second = await cluster.patch_status(
        JOB, {"a": None, "b": {"c": 4}}, resource_version=first["metadata"]["resourceVersion"]
    )
    assert second["status"] == {"b": {"c": 4, "d": 3}}
    with pytest.raises(ConflictError):
        await cluster.patch_status(JOB, {"a": 9}, resource_version=version)
    assert cluster.job(JOB) == second
    await recorder.until(lambda: len(recorder.jobs) == 3)
    assert recorder.jobs[-1] == second
    with pytest.raises(NotFoundError):
        await cluster.patch_status(Key("default", "no"), {}, resource_version=None)


async def test_deleted_job_deletes_its_pods(cluster: LocalCluster, recorder: Recorder) -> None:
    uid = cluster.create_job(job_manifest())["metadata"]["uid"]
    await cluster.create_pod(pod("exec sleep 1000", owner=uid))
    await cluster.delete_job(JOB, uid="of an earlier job")
    assert cluster.job(JOB) is not None
    await cluster.delete_job(JOB, uid=uid)
    assert cluster.job(JOB) is None
    await recorder.until(lambda: recorder.deleted == [JOB] and not cluster.pods_of(JOB))


async def test_events_reach_the_listener(cluster: LocalCluster, recorder: Recorder) -> None:
    job = cluster.create_job(job_manifest())
    event = Event("Running", "all pods are ready")
    await cluster.emit_event(job, event)
    await recorder.until(lambda: recorder.events == [event])


async def test_pods_have_their_own_process_group(cluster: LocalCluster, recorder: Recorder) -> None:
    """Ctrl-C in the terminal must reach only the command."""
    await cluster.create_pod(pod("ps -o pgid= -p $$; exec sleep 1000"))
    await recorder.until(lambda: recorder.lines)
    assert int(recorder.lines[0]) != os.getpgid(0)
