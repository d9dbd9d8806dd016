"""Tests of a job's Service and pods: environment, names, labels and the user's template."""

from copy import deepcopy
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.observed import observe
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import Json, container, gpus, template
from tests.unit.job.builders import fresh_job
from tests.unit.job.builders import pod as pod_state

FIRST = Identity(index=0, attempt=0)
L4 = {"type": "nvidia-l4"}
TEMPLATE: Json = {
    "metadata": {
        "creationTimestamp": None,
        "labels": {"team": "vision", "ddp-operator.io/job-name": "forged"},
        "annotations": {"note": "kept"},
        "finalizers": ["example.com/kept"],
    },
    "spec": {
        "futureField": {"deep": [1, {"er": None}]},
        "schedulingGates": [{"name": "kept"}],
        "initContainers": [container("init")],
        "containers": [
            container(
                command=["python", "train.py"],
                securityContext={"readOnlyRootFilesystem": True},
                futureField=1,
            ),
            container("logs", env=[{"name": "RANK", "value": "mine"}]),
        ],
    },
}


def trainer(job: DDPJob, identity: Identity = FIRST) -> Json:
    containers: list[Json] = manifests.pod(job, identity)["spec"]["containers"]
    return next((c for c in containers if c["name"] == "trainer"), containers[0])


def env(job: DDPJob, identity: Identity = FIRST) -> dict[str, str]:
    return {e["name"]: e["value"] for e in trainer(job, identity)["env"] if "value" in e}


def with_gpus(**limits: int | str) -> Json:
    return {"template": template(container(resources=gpus(**limits)))}


class TestEnvironment:
    def test_environment_with_one_process_per_pod(self) -> None:
        job = fresh_job(replicas=4, masterPort=23456, checkpoint={"path": "/ckpt"})
        assert env(job, Identity(index=3, attempt=2, replacement=1)) == {
            "MASTER_ADDR": "digits-2-0.digits",
            "MASTER_PORT": "23456",
            "WORLD_SIZE": "4",
            "RANK": "3",
            "LOCAL_RANK": "0",
            "NODE_RANK": "3",
            "GROUP_RANK": "3",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_WORLD_SIZE": "4",
            "DDP_BACKEND": "gloo",
            "DDP_JOB_NAME": "digits",
            "DDP_JOB_UID": job.uid,
            "DDP_ATTEMPT": "2",
            "DDP_CHECKPOINT_DIR": "/ckpt",
            "DDP_STATUS_PORT": "28737",
            "PYTHONUNBUFFERED": "1",
            "PET_NNODES": "4",
            "PET_NPROC_PER_NODE": "1",
            "PET_NODE_RANK": "3",
            "PET_MASTER_ADDR": "digits-2-0.digits",
            "PET_MASTER_PORT": "23456",
            "DDP_RESTART_SCOPE": "Auto",
            "DDP_GENERATION": "0",
            "DDP_POD": "digits-2-3-r1",
            "DDP_LOCAL_PATHS": "/ckpt",
        }

    def test_wandb_run_resumes_on_rank_0_only(self) -> None:
        job = fresh_job(replicas=2)
        run = {"WANDB_RUN_ID": job.uid, "WANDB_RESUME": "allow", "WANDB_NAME": "digits"}
        assert run.items() <= env(job, Identity(0, 0)).items()
        assert run.items() <= env(job, Identity(0, 3, 1)).items()
        assert not run.keys() & env(job, Identity(1, 0)).keys()
        own = container(env=[{"name": "WANDB_RUN_ID", "value": "mine"}])
        found = trainer(fresh_job(template=template(own)))["env"]
        assert [e["value"] for e in found if e["name"] == "WANDB_RUN_ID"] == ["mine"]

    def test_only_node_rank_0_gets_the_members(self) -> None:
        job = fresh_job(replicas=3)
        assert env(job, Identity(0, 0))["DDP_MEMBERS"] == "0-2"
        assert "DDP_MEMBERS" not in env(job, Identity(1, 0))
        for scope in ("Pod", "Gang"):
            assert "DDP_MEMBERS" not in env(fresh_job(restart={"scope": scope}), Identity(0, 0))

    def test_memory_checkpoints_have_their_own_volume(self) -> None:
        memory = {"sizeLimit": "1.5Gi", "copies": 2}
        job = fresh_job(replicas=3, memoryCheckpoint=memory, spares=1)
        for identity in (FIRST, Identity(2, 1), Identity(3, 0)):
            found = env(job, identity)
            assert {name: value for name, value in found.items() if "MEMORY" in name} == {
                "DDP_MEMORY_DIR": "/ddp-memory",
                "DDP_MEMORY_BYTES": str(1536 * 2**20),
                "DDP_MEMORY_COPIES": "2",
            }
            [mount] = [
                m for m in trainer(job, identity)["volumeMounts"] if m["name"] == "ddp-memory"
            ]
            assert mount["mountPath"] == "/ddp-memory"
            pod = manifests.pod(job, identity)["spec"]
            [volume] = [v for v in pod["volumes"] if v["name"] == mount["name"]]
            assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1.5Gi"}
        plain = fresh_job(replicas=3)
        assert not any("MEMORY" in name for name in env(plain))
        assert "ddp-memory" not in str(manifests.pod(plain, FIRST))

    def test_environment_with_several_processes_per_pod(self) -> None:
        """Only the launcher knows the rank of each process."""
        found = env(fresh_job(replicas=2, nprocPerNode=8), Identity(index=1, attempt=0))
        sizes = (found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"], found["PET_NPROC_PER_NODE"])
        assert (*sizes, found["NODE_RANK"]) == ("16", "8", "8", "1")
        assert not {"RANK", "LOCAL_RANK"} & set(found)

    def test_replacement_has_the_same_environment(self) -> None:
        job = fresh_job(restart={"scope": "Pod"})
        new, old = env(job, Identity(1, 2, 5)), env(job, Identity(1, 2, 0))
        assert (new.pop("DDP_POD"), old.pop("DDP_POD")) == ("digits-2-1-r5", "digits-2-1")
        assert new == old

    @pytest.mark.parametrize(
        ("spec", "processes", "backend"),
        [
            ({}, 1, "gloo"),
            (with_gpus(gpu=4), 4, "nccl"),
            (with_gpus(gpu="4"), 4, "nccl"),
            (with_gpus(mig=3), 3, "nccl"),
            (with_gpus(gpu=0), 1, "gloo"),
            ({"template": template(container(), container("v", resources=gpus(gpu=4)))}, 1, "gloo"),
            ({"accelerator": {**L4, "count": 2}}, 2, "nccl"),
            ({"accelerator": {"computeClass": "gpus", "count": 4}}, 4, "nccl"),
            ({"accelerator": L4, **with_gpus(gpu=4)}, 4, "nccl"),
            ({"accelerator": L4, **with_gpus(gpu=0)}, 1, "gloo"),
            ({"accelerator": {**L4, "count": 2}, "backend": "gloo"}, 2, "gloo"),
            ({"accelerator": {**L4, "count": 2}, "nprocPerNode": 1}, 1, "nccl"),
            ({"nprocPerNode": 3}, 3, "gloo"),
        ],
    )
    def test_processes_and_backend_follow_the_gpus(
        self, spec: Json, processes: int, backend: str
    ) -> None:
        job = fresh_job(**spec)
        assert env(job)["LOCAL_WORLD_SIZE"] == str(processes)
        assert env(job)["DDP_BACKEND"] == backend

    def test_users_variables_override_and_refer_to_ours(self) -> None:
        users = [
            {"name": "MASTER_PORT", "value": "1"},
            {"name": "DDP_CHECKPOINT_DIR", "value": "/elsewhere"},
            {"name": "LOG", "value": "/logs/$(NODE_RANK)"},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]
        job = fresh_job(template=template(container(env=users)))
        entries = trainer(job)["env"]
        names = [entry["name"] for entry in entries]
        assert len(set(names)) == len(names)
        assert entries[-4:] == users, "references only look back, so the user's come last"
        assert env(job)["MASTER_PORT"] == "1"

    @pytest.mark.parametrize(("names", "main"), [(("logs", "trainer"), 1), (("main", "logs"), 0)])
    def test_trainer_or_first_container_gets_the_environment(
        self, names: tuple[str, str], main: int
    ) -> None:
        job = fresh_job(template=template(*(container(name) for name in names)))
        containers = manifests.pod(job, FIRST)["spec"]["containers"]
        assert "MASTER_ADDR" in {entry["name"] for entry in containers.pop(main)["env"]}
        assert containers == [container("logs")]


def test_override_changes_only_its_pods() -> None:
    patch = {"metadata": {"labels": {"kind": "big"}}, "spec": {"priorityClassName": "high"}}
    overrides = [{"indexes": ["1"], "template": patch, "accelerator": {**L4, "count": 2}}]
    job = fresh_job(overrides=overrides)
    plain, own = manifests.pod(job, FIRST), manifests.pod(job, Identity(1, 0))
    assert "priorityClassName" not in plain["spec"]
    assert "nodeSelector" not in plain["spec"]
    assert own["spec"]["priorityClassName"] == "high"
    assert own["metadata"]["labels"]["kind"] == "big"
    [trainer] = own["spec"]["containers"]
    assert trainer["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    hashes = {pod["metadata"]["annotations"]["ddp-operator.io/spec-hash"] for pod in (plain, own)}
    assert hashes == {job.spec_hash}


def test_override_with_host_network_is_reached_at_its_node() -> None:
    overrides = [{"indexes": ["1"], "template": {"spec": {"hostNetwork": True}}}]
    job = fresh_job(overrides=overrides)
    pods = [pod_state(job, i, address="10.0.0.1:28737", has_nodes_ip=True) for i in range(2)]
    seen = observe(job, pods).current
    assert [seen[i].address for i in range(2)] == ["", "10.0.0.1:28737"]


class TestIdentity:
    def test_pod_metadata(self) -> None:
        job = fresh_job()
        metadata = manifests.pod(job, Identity(index=1, attempt=2, replacement=3))["metadata"]
        assert metadata == {
            "name": "digits-2-1-r3",
            "namespace": "research",
            "labels": {
                "ddp-operator.io/job-name": "digits",
                "ddp-operator.io/job-uid": "7d1c",
                "ddp-operator.io/replica-index": "1",
                "ddp-operator.io/attempt": "2",
                "ddp-operator.io/replacement": "3",
                "ddp-operator.io/serving": "true",
            },
            "annotations": {
                "ddp-operator.io/spec-hash": job.spec_hash,
                "ddp-operator.io/trainer-container": "trainer",
            },
            "ownerReferences": [
                {
                    "apiVersion": "ddp-operator.io/v1alpha1",
                    "kind": "DDPJob",
                    "name": "digits",
                    "uid": job.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        }

    def test_host_name_and_restart_policy(self) -> None:
        spec = manifests.pod(fresh_job(), Identity(index=1, attempt=2, replacement=3))["spec"]
        assert (spec["hostname"], spec["subdomain"]) == ("digits-2-1", "digits")
        assert spec["restartPolicy"] == "Never"

    def test_service_selects_ready_and_unready_pods(self) -> None:
        job = fresh_job(masterPort=23456)
        service = manifests.service(job)
        pod = manifests.pod(job, FIRST)
        assert service["metadata"]["name"] == pod["spec"]["subdomain"]
        assert service["metadata"]["ownerReferences"] == pod["metadata"]["ownerReferences"]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert "ddp-operator.io/serving" in service["spec"]["selector"]
        assert [port["port"] for port in service["spec"]["ports"]] == [23456]


class TestTemplate:
    def test_template_is_kept(self) -> None:
        pod = manifests.pod(fresh_job(template=TEMPLATE), FIRST)
        for name in ("futureField", "schedulingGates", "initContainers"):
            assert pod["spec"][name] == TEMPLATE["spec"][name]
        main, side_car = pod["spec"]["containers"]
        assert side_car == TEMPLATE["spec"]["containers"][1]
        assert {k: main[k] for k in TEMPLATE["spec"]["containers"][0]} == (
            TEMPLATE["spec"]["containers"][0]
        )
        added = set(main) - set(TEMPLATE["spec"]["containers"][0])
        assert added == {"env", "volumeMounts", "terminationMessagePolicy"}
        metadata: dict[str, Any] = pod["metadata"]
        assert metadata["labels"]["team"] == "vision"
        assert metadata["annotations"]["note"] == "kept"
        assert metadata["finalizers"] == ["example.com/kept"]

    def test_termination_message_falls_back_to_the_log(self) -> None:
        for wish in ({}, {"terminationMessagePolicy": "File"}):
            job = fresh_job(template=template(container() | wish))
            [trainer] = manifests.pod(job, FIRST)["spec"]["containers"]
            expected = wish.get("terminationMessagePolicy", "FallbackToLogsOnError")
            assert trainer["terminationMessagePolicy"] == expected

    def test_template_cannot_set_operator_labels(self) -> None:
        pod = manifests.pod(fresh_job(template=TEMPLATE), FIRST)
        assert pod["metadata"]["labels"]["ddp-operator.io/job-name"] == "digits"

    def test_building_pods_changes_no_job(self) -> None:
        job = fresh_job(template=TEMPLATE, accelerator=L4)
        before = deepcopy(job.spec)
        one, other = manifests.pod(job, FIRST), manifests.pod(job, Identity(1, 0))
        assert job.spec == before
        assert job.spec.template == TEMPLATE
        other["spec"]["containers"][0]["env"].clear()
        other["metadata"]["labels"].clear()
        assert one == manifests.pod(job, FIRST)


@pytest.mark.parametrize(
    ("own", "policy"),
    [({}, "ClusterFirstWithHostNet"), ({"dnsPolicy": "ClusterFirst"}, "ClusterFirstWithHostNet"),
     ({"dnsPolicy": "None"}, "None"), ({"hostNetwork": False}, None)],
)  # fmt: skip
def test_host_network_sets_the_dns_policy(own: Json, policy: str | None) -> None:
    template_ = template()
    template_["spec"] |= {"hostNetwork": True, **own}
    made = manifests.pod(fresh_job(template=template_), FIRST)
    assert made["spec"].get("dnsPolicy") == policy
