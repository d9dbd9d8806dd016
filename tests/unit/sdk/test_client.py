"""The client of a cluster, with a fake API server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ddp_client import AsyncClient, Client
from ddp_client.remote import cluster
from ddp_client.remote.cluster import JOBS, NoSuchJobError, NotInstalledError
from ddp_client.sdk import (
    JobFailedError,
    JobGoneError,
    JobRequestError,
    ManifestError,
    NameTakenError,
    Options,
    WaitTimeoutError,
)
from ddp_client.views.refused import RefusedError
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.ports import ClusterError

from tests.unit.cli.jobs import ESCAPES, condition, failure, stored, training
from tests.unit.job.builders import NAME, NAMESPACE
from tests.unit.kube.fake_api_server import FakeApiServer, Fault

JOB = ("ddpjobs", NAMESPACE, NAME)
CONFIG_MAPS = "configmaps"


def train(steps: int) -> None:
    print(steps)


def state(phase: str, **more: Any) -> dict[str, Any]:
    """A status with a phase."""
    return {"status": stored(phase, "Because", "it is so", **more)["status"]}


@pytest.mark.parametrize("namespace", ["prod/train", "../kube-system", "Prod"])
def test_invalid_namespace_is_refused(namespace: str, kubeconfig: Path) -> None:
    with pytest.raises(JobRequestError, match=r"namespace '.*': use lower-case letters"):
        AsyncClient(namespace=namespace, kubeconfig=kubeconfig)


@pytest.mark.parametrize("name", ["prod/train", "ddp/train", "../secrets/train"])
async def test_name_with_a_slash_is_refused(
    client: AsyncClient, server: FakeApiServer, name: str
) -> None:
    with pytest.raises(JobRequestError, match=r"name '.*': use lower-case letters"):
        await client.job(name)
    assert server.requests == []


class TestSubmitting:
    async def test_a_function(self, client: AsyncClient, server: FakeApiServer) -> None:
        job = await client.run(train, arguments={"steps": 7}, image="mine:1", replicas=3)
        assert job.namespace == NAMESPACE
        assert job.name.startswith("train-")
        (made,) = [key for key in server.objects if key[0] == "ddpjobs"]
        assert made == ("ddpjobs", NAMESPACE, job.name)
        assert (await job.read()).spec.replicas == 3
        (config,) = [stored for key, stored in server.objects.items() if key[0] == CONFIG_MAPS]
        assert "def train(steps: int) -> None:" in str(config["data"])
        (owner,) = config["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("DDPJob", job.name, job.uid)

    async def test_restricted_namespace_gets_a_security_context(
        self, client: AsyncClient, server: FakeApiServer
    ) -> None:
        server.namespace_labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        job = await client.run(command=["true"], image="mine:1", user=1000)
        pod = (await job.read()).spec.template["spec"]
        context = pod["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 1000)
        assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}

        with pytest.raises(JobRequestError, match="which forbids paths of nodes"):
            await client.run(command=["true"], image="mine:1", mounts=["/disk:/data"])
        denied = {"kind": "Status", "reason": "Forbidden", "message": "not yours"}
        server.faults = [Fault("GET", 403, denied, path_part=f"/namespaces/{NAMESPACE}")]
        job = await client.run(command=["true"], image="mine:1")
        assert "securityContext" not in (await job.read()).spec.template["spec"]

    async def test_folder_is_stored_in_its_volume_before_the_job_exists(
        self, client: AsyncClient, server: FakeApiServer, tmp_path: Path
    ) -> None:
        (tmp_path / "train.py").write_text("print(1)\n")
        options: Options = {"image": "mine:1", "workdir": tmp_path, "code_volume": "pvc/team"}
        with pytest.raises(RefusedError, match="there is no claim team in namespace"):
            await client.run(command=["python", "train.py"], **options)
        assert server.objects == {}
        metadata = {"name": "team", "namespace": NAMESPACE}
        claim = {"metadata": metadata, "spec": {"accessModes": ["ReadWriteMany"]}}
        server.create("persistentvolumeclaims", claim)
        job = await client.run(command=["python", "train.py"], **options)
        volumes = (await job.read()).spec.template["spec"]["volumes"]
        assert {"claimName": "team"} in [one.get("persistentVolumeClaim") for one in volumes]

    async def test_refused_job_leaves_nothing_behind(
        self, client: AsyncClient, server: FakeApiServer
    ) -> None:
        refusal = {"kind": "Status", "reason": "Forbidden", "message": "no quota", "code": 403}
        server.faults = [Fault("POST", 403, refusal, path_part="/ddpjobs")]
        with pytest.raises(ClusterError, match="no quota"):
            await client.run(train, arguments={"steps": 7}, image="mine:1")
        assert not server.objects

    async def test_taken_name_is_refused(self, client: AsyncClient, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        with pytest.raises(NameTakenError, match="choose another name"):
            await client.run(command=["true"], image="mine:1", name=NAME)

    async def test_a_cluster_without_ddpjobs(
        self, client: AsyncClient, server: FakeApiServer
    ) -> None:
        server.resource_lists.clear()
        missing = {"kind": "Status", "reason": "NotFound", "message": "page not found"}
        server.faults = [Fault("POST", 404, missing, path_part="/ddpjobs")]
        with pytest.raises(NotInstalledError, match="install the CRD and the operator"):
            await client.run(command=["true"], image="mine:1", name="new")

    @pytest.mark.parametrize(
        "manifest", [{}, {"kind": "DDPJob"}, {"kind": "Secret", "metadata": {"name": "x"}}]
    )
    async def test_invalid_manifest_is_refused(
        self, client: AsyncClient, server: FakeApiServer, manifest: dict[str, Any]
    ) -> None:
        with pytest.raises(ManifestError, match="expected a DDPJob with metadata"):
            await client.apply(manifest)
        assert not server.requests


class TestLooking:
    async def test_jobs(self, client: AsyncClient, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        other = training()
        other["metadata"] |= {"namespace": "elsewhere", "name": "other"}
        server.create("ddpjobs", other)
        assert [job.name for job in await client.jobs()] == [NAME]
        everywhere = await client.jobs(all_namespaces=True)
        assert {(job.namespace, job.name) for job in everywhere} == {
            (NAMESPACE, NAME),
            ("elsewhere", "other"),
        }

    async def test_a_job_and_its_models(self, client: AsyncClient, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        job = await client.job(NAME)
        status = await job.status()
        assert isinstance(status, DDPJobStatus)
        assert status.progress is not None
        assert status.progress.step == 500
        assert (await job.read()).status == status
        assert (await job.manifest())["metadata"]["uid"] == job.uid

    async def test_no_such_job(self, client: AsyncClient) -> None:
        with pytest.raises(NoSuchJobError, match="there is no job missing"):
            await client.job("missing")
        with pytest.raises(JobRequestError, match="use lower-case letters"):
            await client.job("../pods")

    async def test_a_spec_of_another_release(
        self, client: AsyncClient, server: FakeApiServer
    ) -> None:
        manifest = training()
        manifest["spec"]["later"] = True
        server.create("ddpjobs", manifest)
        job = await client.job(NAME)
        assert (await job.status()).phase == "Running"
        with pytest.raises(ManifestError, match=r"spec\.later"):
            await job.read()

    async def test_new_job_of_the_same_name_is_another_one(
        self, client: AsyncClient, server: FakeApiServer
    ) -> None:
        server.create("ddpjobs", training())
        job = await client.job(NAME)
        server.delete(*JOB)
        server.create("ddpjobs", training())
        for asked in (job.status(), job.wait(timeout=5), job.stop(), job.delete(), job.why()):
            with pytest.raises(JobGoneError, match=f"{NAME} no longer exists"):
                await asked
        assert JOB in server.objects

    async def test_why_is_text(self, client: AsyncClient, server: FakeApiServer) -> None:
        server.create("ddpjobs", stored("Failed", "Error", ESCAPES, failures=[failure()]))
        said = str(await (await client.job(NAME)).why())
        assert said.startswith(f"{NAME} failed")
        assert "ValueError: bad batch" in said
        assert said.replace("\n", "").isprintable()

    async def test_why_includes_the_queue(self, client: AsyncClient, server: FakeApiServer) -> None:
        spec = {"scheduling": {"queueName": "team"}}
        job = server.create("ddpjobs", stored("Pending", "Queued", spec=spec))
        name = f"{NAME}-{job['metadata']['uid'][:6]}-0"
        metadata = {"name": name, "namespace": "research"}
        server.create("workloads", {"metadata": metadata, "spec": {"active": False}})
        why = await (await client.job(NAME)).why()
        assert why.sentence.endswith("Queued: the Workload's spec.active is false")
        assert name in why.remedies[0]

    @pytest.mark.parametrize("readable", [True, False])
    async def test_why_puts_the_teams_own_remedies_first(
        self, client: AsyncClient, server: FakeApiServer, readable: bool
    ) -> None:
        said = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB."
        server.create("ddpjobs", stored("Failed", "X", failures=[failure(message=said)]))
        metadata = {"name": "ddp-remedies", "namespace": NAMESPACE}
        data = {"oom": "CUDA out of memory\nAsk in #gpus for an H200", "bad": "a"}
        server.create(CONFIG_MAPS, {"metadata": metadata, "data": data})
        if not readable:
            server.faults = [Fault("GET", 403, {}, path_part="/configmaps/", times=9)]
        job = await client.job(NAME)
        why = await job.why()
        assert (why.remedies[0] == "Ask in #gpus for an H200") is readable
        assert any("smaller batches" in remedy for remedy in why.remedies)
        assert any("key bad: it has one line" in line for line in why.evidence) is readable
        with pytest.raises(JobFailedError) as failed:
            await job.wait(timeout=5)
        assert failed.value.diagnosis.remedies == why.remedies


class TestWaiting:
    async def test_progress_is_called_for_each_state(
        self, client: AsyncClient, server: FakeApiServer
    ) -> None:
        server.create("ddpjobs", stored("Pending"))
        job = await client.job(NAME)
        phases: list[str] = []

        def progress(status: DDPJobStatus) -> None:
            phases.append(status.phase)
            following = {"Pending": "Running", "Running": "Succeeded"}.get(status.phase)
            if following:
                server.update(*JOB, state(following))

        assert (await job.wait(timeout=30, on_progress=progress)).phase == "Succeeded"
        assert phases == ["Pending", "Running", "Succeeded"]
        assert server.count("GET", f"/{NAME}") == 2  # by `job` and `wait`; the watch did the rest
        assert server.count("GET", "/ddpjobs", watch=True) == 1

    async def test_failed_job_raises_with_a_diagnosis(
        self, client: AsyncClient, server: FakeApiServer
    ) -> None:
        failed = stored("Failed", "MaxRestartsExceeded", "used up", failures=[failure()])
        server.create("ddpjobs", failed)
        with pytest.raises(JobFailedError) as caught:
            await (await client.job(NAME)).wait(timeout=30)
        assert "MaxRestartsExceeded: used up" in str(caught.value)
        assert caught.value.diagnosis.last_words[-1] == "ValueError: bad batch"
        assert caught.value.name == NAME

    async def test_wait_timeout(self, client: AsyncClient, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        with pytest.raises(WaitTimeoutError, match=r"it is Running \(PodsReady\) and continues"):
            await (await client.job(NAME)).wait(timeout=0.2)

    async def test_wait_for_a_deleted_job(self, client: AsyncClient, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        job = await client.job(NAME)
        with pytest.raises(JobGoneError):
            await job.wait(timeout=30, on_progress=lambda _: server.delete(*JOB))

    @pytest.mark.parametrize(
        "fault",
        [
            Fault("GET", 403, {"message": "no watch"}, path_part="watch=true", times=9),
            Fault("GET", None, path_part="watch=true"),
            Fault("GET", 410, {"message": "too old"}, path_part="watch=true"),
        ],
        ids=["forbidden", "broken", "too old"],
    )
    async def test_wait_polls_without_a_watch(
        self,
        client: AsyncClient,
        server: FakeApiServer,
        monkeypatch: pytest.MonkeyPatch,
        fault: Fault,
    ) -> None:
        monkeypatch.setattr(cluster, "_POLL_SECONDS", 0.01)
        server.faults = [fault]
        server.create("ddpjobs", training())
        job = await client.job(NAME)

        def end(_: DDPJobStatus) -> None:
            asyncio.get_running_loop().call_later(0.05, server.update, *JOB, state("Succeeded"))

        states = job.watch(timeout=30)
        end(await anext(states))
        assert [status.phase async for status in states] == ["Succeeded"]
        assert fault.times < 9

    async def test_wait_ends_after_a_long_outage(
        self, client: AsyncClient, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster, "_POLL_SECONDS", 0.01)
        monkeypatch.setattr(cluster, "PATIENCE_SECONDS", 0.05)
        server.create("ddpjobs", training())
        job = await client.job(NAME)
        server.go_away()
        with pytest.raises(ClusterError, match="away"):
            await job.wait()


class TestActing:
    async def test_stop_resume_restart_delete(
        self, client: AsyncClient, server: FakeApiServer
    ) -> None:
        server.create("ddpjobs", training())
        job = await client.job(NAME)
        await job.restart()
        annotations = server.objects[JOB]["metadata"]["annotations"]
        assert "ddp-operator.io/restart-requested" in annotations
        await job.stop()
        assert server.objects[JOB]["spec"]["suspend"] is True
        with pytest.raises(RefusedError, match="already stopped"):
            await job.stop()
        await job.resume()
        assert server.objects[JOB]["spec"]["suspend"] is False
        await job.delete()
        assert JOB not in server.objects

    async def test_ended_job_cannot_be_restarted(
        self, client: AsyncClient, server: FakeApiServer
    ) -> None:
        server.create("ddpjobs", stored("Succeeded", conditions=[condition("Succeeded", "Done")]))
        with pytest.raises(RefusedError, match="has ended"):
            await (await client.job(NAME)).restart()


class TestSync:
    """The synchronous client, called beside a running loop, as in a notebook."""

    async def test_a_job_from_its_start_to_its_end(
        self, server: FakeApiServer, kubeconfig: Path
    ) -> None:
        server.resource_lists[JOBS.root] = [JOBS.plural]
        loop = asyncio.get_running_loop()

        def in_a_notebook() -> list[Any]:
            with Client(kubeconfig=kubeconfig) as client:
                job = client.run(train, arguments={"steps": 7}, image="mine:1", name=NAME)

                def progress(status: DDPJobStatus) -> None:
                    # In the caller's thread, so that it may use the job.
                    assert job.status.phase == status.phase
                    loop.call_soon_threadsafe(server.update, *JOB, state("Succeeded"))

                ended = job.wait(timeout=30, on_progress=progress)
                found = client.job(NAME)
                return [repr(job), ended.phase, found.name, [j.name for j in client.jobs()]]

        assert await asyncio.to_thread(in_a_notebook) == [
            f"<Job {NAMESPACE}/{NAME}>",
            "Succeeded",
            NAME,
            [NAME],
        ]

    async def test_closed_client_is_an_error(self, server: FakeApiServer, kubeconfig: Path) -> None:
        server.create("ddpjobs", training())

        def closed() -> None:
            with Client(kubeconfig=kubeconfig) as client:
                job = client.job(NAME)
            with pytest.raises(RuntimeError, match="closed"):
                job.why()
            client.close()

        await asyncio.to_thread(closed)

    async def test_a_job_keeps_its_client(self, server: FakeApiServer, kubeconfig: Path) -> None:
        server.create("ddpjobs", training())
        phase = await asyncio.to_thread(
            lambda: Client(kubeconfig=kubeconfig).job(NAME).status.phase
        )
        assert phase == "Running"
