"""A job that an earlier operator started continues under this one, with this CRD."""

from pathlib import Path

from ddp_operator.kube import PODS, ApiClient
from ddp_operator.kube.client import MERGE_PATCH

from tests import cluster, stored_jobs
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import running_operator


async def leave(admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, name: str) -> set[str]:
    """Store a job as an earlier operator left it; return the names of its pods."""
    record = stored_jobs.load(name)
    metadata = {
        part: value
        for part, value in record.manifest["metadata"].items()
        if part in {"name", "annotations"}
    }
    stored = await jobs.create(record.manifest | {"metadata": metadata})
    for pod in record.pods.values():
        pod["metadata"]["namespace"] = jobs.namespace
        pod["metadata"]["ownerReferences"][0]["uid"] = stored["metadata"]["uid"]
        await admin.request("POST", PODS.path(namespace=jobs.namespace), body=pod)
        await kubelet.run(pod["metadata"]["name"])
    path = JOBS.path(namespace=jobs.namespace, name=metadata["name"], subresource="status")
    body = {"status": record.status | {"observedGeneration": 1}}
    await admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    return {key.name for key in record.pods}


async def test_upgraded_operator_keeps_pods_and_notes(
    control_plane: cluster.ControlPlane,
    admin: ApiClient,
    jobs: Jobs,
    kubelet: FakeKubelet,
    tmp_path: Path,
) -> None:
    pods = await leave(admin, jobs, kubelet, "resumed")
    before = (await jobs.get("train"))["status"]
    assert before["bookkeeping"]["restartsWithoutProgress"] == 1, "the CRD keeps the notes"
    with running_operator(
        control_plane.kubeconfig, tmp_path / "log", namespace=jobs.namespace
    ) as process:
        for generation in (2, 3):
            await jobs.set_spec("train", ttlSecondsAfterFinished=generation)
            await jobs.until(lambda s, g=generation: s.observed_generation == g, "train")  # type: ignore[misc]
        after = (await jobs.get("train"))["status"]
        assert after["bookkeeping"].pop("ranSpecHash"), "its pods run"
        assert after["bookkeeping"] == before["bookkeeping"]
        assert (after["phase"], after["attempt"]) == ("Running", before["attempt"])
        assert await jobs.live_pods("train") == pods
        assert "older than this operator" not in process.log
