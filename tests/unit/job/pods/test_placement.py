"""Tests of node selectors, tolerations, GPU limits and volumes of pods."""

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import Json, container, gpus, template
from tests.unit.job.builders import fresh_job

FIRST = Identity(index=0, attempt=0)
GPU_TOLERATION: Json = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
L4 = {"type": "nvidia-l4"}
GCS_FUSE = "gcsfuse.csi.storage.gke.io"


def trainer(job: DDPJob, identity: Identity = FIRST) -> Json:
    containers: list[Json] = manifests.pod(job, identity)["spec"]["containers"]
    return next((c for c in containers if c["name"] == "trainer"), containers[0])


def tolerates(label: str, value: str = "true") -> Json:
    return {"key": label, "operator": "Equal", "value": value, "effect": "NoSchedule"}


class TestAccelerator:
    @pytest.mark.parametrize(
        ("provisioning", "label"),
        [
            ("standard", None),
            ("spot", "cloud.google.com/gke-spot"),
            ("flex-start", "cloud.google.com/gke-flex-start"),
        ],
    )
    @pytest.mark.parametrize("type_", ["nvidia-l4", "nvidia-h100-80gb"])
    def test_selector_tolerations_and_limit(
        self, type_: str, provisioning: str, label: str | None
    ) -> None:
        accelerator = {"type": type_, "count": 8, "provisioning": provisioning}
        job = fresh_job(accelerator=accelerator)
        spec = manifests.pod(job, FIRST)["spec"]
        bought = {label: "true"} if label else {}
        assert spec["nodeSelector"] == {"cloud.google.com/gke-accelerator": type_, **bought}
        spot = [tolerates("cloud.google.com/gke-provisioning", "spot")]
        assert spec["tolerations"] == [
            GPU_TOLERATION,
            *([tolerates(label)] if label else []),
            *(spot if provisioning == "spot" else []),
        ]
        assert trainer(job)["resources"] == {"limits": {"nvidia.com/gpu": 8}}

    def test_templates_selector_and_tolerations_are_kept(self) -> None:
        mine = {"key": "mine", "operator": "Exists"}
        job = fresh_job(
            accelerator=L4, template=template(nodeSelector={"disk": "ssd"}, tolerations=[mine])
        )
        spec = manifests.pod(job, FIRST)["spec"]
        assert spec["nodeSelector"] == {
            "disk": "ssd",
            "cloud.google.com/gke-accelerator": "nvidia-l4",
        }
        assert spec["tolerations"] == [mine, GPU_TOLERATION]

    @pytest.mark.parametrize("own", [gpus(gpu=2), gpus(gpu="2"), gpus(mig=1), gpus(gpu=0)])
    def test_users_gpu_limit_is_kept(self, own: Json) -> None:
        job = fresh_job(accelerator=L4, template=template(container(resources=own)))
        assert trainer(job)["resources"] == own

    def test_gpu_limit_is_added_to_other_resources(self) -> None:
        own = {"limits": {"memory": "1Gi"}, "requests": {"cpu": 2}}
        job = fresh_job(accelerator=L4, template=template(container(resources=own)))
        assert trainer(job)["resources"] == {
            "limits": {"memory": "1Gi", "nvidia.com/gpu": 1},
            "requests": {"cpu": 2},
        }

    @pytest.mark.parametrize("type_", ["nvidia-gb200", "nvidia-gb300"])
    def test_arm_machines_are_selected_and_tolerated(self, type_: str) -> None:
        job = fresh_job(accelerator={"type": type_, "count": 4})
        spec = manifests.pod(job, FIRST)["spec"]
        assert spec["nodeSelector"]["kubernetes.io/arch"] == "arm64"
        assert tolerates("kubernetes.io/arch", "arm64") in spec["tolerations"]

    @pytest.mark.parametrize(
        ("more", "labels"),
        [
            ({}, {}),
            ({"project": "theirs"}, {"project": "theirs"}),
            ({"blocks": "b", "subBlocks": "s"}, {"blocks": "b", "subblocks": "s"}),
        ],
    )
    def test_reservation_is_selected_by_its_labels(self, more: Json, labels: Json) -> None:
        reservation = {"name": "ours", **more}
        accelerator = {**L4, "provisioning": "reservation", "reservation": reservation}
        spec = manifests.pod(fresh_job(accelerator=accelerator), FIRST)["spec"]
        expected = {"affinity": "specific", "name": "ours", **labels}
        assert spec["nodeSelector"] == {
            "cloud.google.com/gke-accelerator": "nvidia-l4",
            **{f"cloud.google.com/reservation-{what}": value for what, value in expected.items()},
        }
        taint = tolerates("cloud.google.com/reservation-name", "ours")
        assert spec["tolerations"] == [GPU_TOLERATION, taint]

    def test_no_accelerator_adds_nothing(self) -> None:
        spec = manifests.pod(fresh_job(), FIRST)["spec"]
        assert not {"nodeSelector", "tolerations"} & set(spec)


class TestVolumes:
    @pytest.mark.parametrize(
        ("checkpoint", "source"),
        [
            ({}, {"emptyDir": {}}),
            ({"persistentVolumeClaim": "c"}, {"persistentVolumeClaim": {"claimName": "c"}}),
            ({"hostPath": "/mnt"}, {"hostPath": {"path": "/mnt", "type": "DirectoryOrCreate"}}),
            (
                {"gcsBucket": "bucket"},
                {"csi": {"driver": GCS_FUSE, "volumeAttributes": {"bucketName": "bucket"}}},
            ),
        ],
    )
    def test_checkpoint_volumes(self, checkpoint: Json, source: Json) -> None:
        job = fresh_job(checkpoint={"path": "/ckpt", **checkpoint})
        pod = manifests.pod(job, FIRST)
        mounts = [m for m in trainer(job)["volumeMounts"] if m["mountPath"] == "/ckpt"]
        [volume] = [v for v in pod["spec"]["volumes"] if v["name"] == mounts[0]["name"]]
        assert volume == {"name": mounts[0]["name"], **source}
        in_bucket = pod["metadata"]["annotations"].get("gke-gcsfuse/volumes")
        assert in_bucket == ("true" if "gcsBucket" in checkpoint else None)

    def test_claim_that_the_template_has_is_no_second_volume(self) -> None:
        claim = {"name": "mine", "persistentVolumeClaim": {"claimName": "c"}}
        mounts = [{"name": "mine", "mountPath": "/code"}]
        made = template(container(volumeMounts=mounts), volumes=[claim])
        job = fresh_job(template=made, checkpoint={"persistentVolumeClaim": "c"})
        volumes = manifests.pod(job, FIRST)["spec"]["volumes"]
        assert [v["name"] for v in volumes if "persistentVolumeClaim" in v] == ["mine"]
        paths = [m["mountPath"] for m in trainer(job)["volumeMounts"] if m["name"] == "mine"]
        assert paths == ["/code", "/checkpoints"]

    def test_shared_memory_volume(self) -> None:
        job = fresh_job()
        [mount] = [m for m in trainer(job)["volumeMounts"] if m["mountPath"] == "/dev/shm"]
        volumes = manifests.pod(job, FIRST)["spec"]["volumes"]
        assert {"name": mount["name"], "emptyDir": {"medium": "Memory"}} in volumes

    @pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/", "/checkpoints", "/checkpoints/"])
    def test_users_own_volume_is_used(self, path: str) -> None:
        volumes = [{"name": "mine", "emptyDir": {"sizeLimit": "1Gi"}}]
        mounts = [{"name": "mine", "mountPath": path}]
        job = fresh_job(template=template(container(volumeMounts=mounts), volumes=volumes))
        found = [m["mountPath"].rstrip("/") for m in trainer(job)["volumeMounts"]]
        assert sorted(found) == ["/checkpoints", "/dev/shm"]
        assert {"name": "mine", "mountPath": path} in trainer(job)["volumeMounts"]
        assert volumes[0] in manifests.pod(job, FIRST)["spec"]["volumes"]
