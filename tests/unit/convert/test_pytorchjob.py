from typing import Any

import pytest
from ddp_client.convert import Conversion

from tests.unit.convert.examples import PYTORCHJOB, convert, convert_object, fields, load, spec_of


def job(**spec: object) -> dict[str, object]:
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "digits"},
        "spec": spec,
    }


def replica(replicas: int = 1, **container: object) -> dict[str, object]:
    trainer = {"name": "pytorch", "image": "i", **container}
    return {"replicas": replicas, "template": {"spec": {"containers": [trainer]}}}


def test_the_whole_example() -> None:
    spec = spec_of(convert(PYTORCHJOB))
    assert spec["replicas"] == 4
    assert spec["nprocPerNode"] == 2
    assert spec["masterPort"] == 23457
    assert spec["cleanPodPolicy"] == "All"
    assert spec["ttlSecondsAfterFinished"] == 600
    assert spec["activeDeadlineSeconds"] == 7200
    assert spec["schedulingTimeoutSeconds"] == 300
    assert spec["scheduling"] == {"queueName": "gpus"}
    assert spec["accelerator"] == {"type": "nvidia-l4", "count": 2, "provisioning": "spot"}
    assert spec["restart"]["maxRestarts"] == 5
    codes = [code for rule in spec["restart"]["rules"] for code in rule["exitCodes"]]
    assert codes == list(range(1, 128))
    assert {rule["action"] for rule in spec["restart"]["rules"]} == {"FailJob"}


def test_the_master_is_the_pod_of_index_0() -> None:
    spec = spec_of(convert(PYTORCHJOB))
    (override,) = spec["overrides"]
    assert override["indexes"] == ["0"]
    master = override["template"]["spec"]
    trainer, board = master["containers"]
    assert trainer["image"] == "registry.example.com/digits:1"
    assert board["name"] == "tensorboard"
    assert trainer["command"] == ["torchrun", "--log-dir=/logs", "train.py"]
    assert trainer["env"] == [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "PEER", "value": "http://$(MASTER_ADDR):9000/x"},
    ]
    assert master["serviceAccountName"] == "trains"
    assert "hostname" not in spec["template"]["spec"]
    assert spec["template"]["spec"]["containers"][0]["image"] == "registry.example.com/digits:2"


def test_equal_master_and_workers_are_equal_pods() -> None:
    specs = {"Master": replica(), "Worker": replica(3)}
    spec = spec_of(convert_object(job(pytorchReplicaSpecs=specs)))
    assert spec["replicas"] == 4
    assert "overrides" not in spec


@pytest.mark.parametrize(
    ("kinds", "policy"), [("Master Worker", "Rank0"), ("Worker", None), ("Master", None)]
)
def test_a_job_with_a_master_succeeds_with_it(kinds: str, policy: str | None) -> None:
    found = convert_object(job(pytorchReplicaSpecs={kind: replica() for kind in kinds.split()}))
    assert spec_of(found).get("successPolicy") == policy


def elastic(**policy: object) -> Conversion:
    return convert_object(job(pytorchReplicaSpecs={"Worker": replica(2)}, elasticPolicy=policy))


def test_elastic_policy_becomes_an_elastic_group() -> None:
    metrics = [{"type": "Resource"}]
    found = elastic(
        minReplicas=1, maxReplicas=3, maxRestarts=7, rdzvBackend="c10d", metrics=metrics
    )
    assert spec_of(found)["replicas"] == 2
    assert spec_of(found)["restart"] == {"maxRestarts": 7}
    assert spec_of(found)["elastic"] == {"minReplicas": 1}
    text = " ".join(map(str, found.notes))
    assert "HorizontalPodAutoscaler" in text
    assert "not carried over: spec.elasticPolicy.maxReplicas: it limits an autoscaler" in text
    assert "changed: spec.elasticPolicy.minReplicas: only this project's launcher" in text
    assert "not carried over: spec.elasticPolicy.rdzvBackend" in text


@pytest.mark.parametrize("policy", [{"minReplicas": 3}, {"maxReplicas": 1}])
def test_sizes_that_contradict_the_replicas_are_left_out(policy: dict[str, int]) -> None:
    found = elastic(**policy)
    assert "elastic" not in spec_of(found)
    assert {f"spec.elasticPolicy.{name}" for name in policy} <= fields(found)


def test_sizes_equal_to_the_replicas_need_no_note() -> None:
    found = elastic(minReplicas=2, maxReplicas=2)
    assert "elastic" not in spec_of(found)
    assert not any("elasticPolicy" in field for field in fields(found))


def test_unequal_pods_are_not_elastic() -> None:
    specs = {"Master": replica(env=[{"name": "A", "value": "b"}]), "Worker": replica(2)}
    found = convert_object(job(pytorchReplicaSpecs=specs, elasticPolicy={"minReplicas": 1}))
    assert "elastic" not in spec_of(found)
    assert any("spec.overrides" in note.text for note in found.notes)


def test_queued_pods_may_be_elastic() -> None:
    document = job(pytorchReplicaSpecs={"Worker": replica(2)}, elasticPolicy={"minReplicas": 1})
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    spec = spec_of(convert_object(document | {"metadata": {"name": "digits", "labels": labels}}))
    assert (spec["elastic"], spec["scheduling"]) == ({"minReplicas": 1}, {"queueName": "gpus"})


def test_restart_policy_never_allows_no_restart() -> None:
    specs = {"Master": {**replica(), "restartPolicy": "Never"}}
    assert spec_of(convert_object(job(pytorchReplicaSpecs=specs)))["restart"] == {"maxRestarts": 0}


def test_a_plain_script_stays_one_process_of_a_pod_with_many_gpus() -> None:
    eight: dict[str, Any] = {"resources": {"limits": {"nvidia.com/gpu": 8}}}
    specs = {"Master": replica(command=["python", "train.py"], **eight)}
    plain = convert_object(job(pytorchReplicaSpecs=specs))
    assert spec_of(plain)["nprocPerNode"] == 1
    assert "spec.nprocPerNode" in fields(plain)
    specs = {"Master": replica(command=["torchrun", "train.py"], **eight)}
    assert "nprocPerNode" not in spec_of(convert_object(job(pytorchReplicaSpecs=specs)))


@pytest.mark.parametrize(
    ("flags", "converted"),
    [
        (
            "--node_rank=$RANK --nnodes=$WORLD_SIZE",
            "--node_rank=${NODE_RANK} --nnodes=${PET_NNODES}",
        ),
        (
            '--node-rank "${RANK}" --nnodes ${WORLD_SIZE}',
            '--node-rank "${NODE_RANK}" --nnodes ${PET_NNODES}',
        ),
    ],
)
def test_shell_line_counts_pods_with_the_variables_that_do(flags: str, converted: str) -> None:
    line = "torchrun --nproc_per_node=4 {} train.py --ranks=$RANKS"
    specs = {"Master": replica(), "Worker": replica(2, command=["sh", "-c", line.format(flags)])}
    found = convert_object(job(pytorchReplicaSpecs=specs))
    assert spec_of(found)["nprocPerNode"] == 4
    override = spec_of(found)["overrides"][0]
    assert override["nprocPerNode"] == "auto"
    assert line.format(converted) in str(spec_of(found))
    assert any(note.text == "--nnodes is $PET_NNODES now" for note in found.notes)


def test_what_may_be_wrong_in_a_command_is_noted() -> None:
    specs = {"Worker": replica(2, command=["mpirun", "-n", "4", "python", "train.py"])}
    found = convert_object(job(pytorchReplicaSpecs=specs))
    assert any("mpirun does not read the job's number of pods" in note.text for note in found.notes)


def test_job_in_a_queue_of_kueue_is_not_suspended() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": "high"}
    document = job(pytorchReplicaSpecs={"Master": replica()}, runPolicy={"suspend": True}) | {
        "metadata": {"name": "digits", "labels": labels}
    }
    found = convert_object(document)
    spec = spec_of(found)
    assert spec["scheduling"] == {"queueName": "gpus"}
    assert "suspend" not in spec
    assert "spec.suspend" in fields(found)
    assert spec["template"]["metadata"]["labels"] == {"kueue.x-k8s.io/priority-class": "high"}


def test_job_that_cannot_be_a_ddpjob_names_the_field() -> None:
    document = load(PYTORCHJOB)
    document["metadata"]["name"] = "x" * 60
    found = convert_object(document)
    assert found.manifest is None
    assert "metadata.name: at most 50" in found.problem
    found = convert_object(job(pytorchReplicaSpecs={"Master": replica(2)}))
    assert found.problem.startswith("spec.pytorchReplicaSpecs.Master.replicas: ")
    found = convert_object(job(pytorchReplicaSpecs={"Master": {"replicas": "2"}}))
    assert found.problem.startswith("spec.pytorchReplicaSpecs.Master.replicas: ")


def test_other_containers_that_use_the_master_get_a_note() -> None:
    worker: dict[str, Any] = replica(2)
    wait = {"name": "wait", "image": "i", "command": ["nslookup", "digits-master-0"]}
    worker["template"]["spec"]["initContainers"] = [wait]
    specs = {"Master": replica(), "Worker": worker}
    found = convert_object(job(pytorchReplicaSpecs=specs))
    assert "spec.pytorchReplicaSpecs.Worker.template.spec" in fields(found)
    assert spec_of(found)["template"]["spec"]["initContainers"] == [wait]
    assert spec_of(found)["overrides"] == [
        {"indexes": ["0"], "template": {"spec": {"initContainers": None}}}
    ]


def test_gang_of_volcano_is_noted_with_what_to_set() -> None:
    notes = {note.field: note for note in convert(PYTORCHJOB).notes}
    queue = notes["spec.runPolicy.schedulingPolicy.queue"]
    assert "a gang scheduler other than Volcano" in queue.text
    assert not queue.carried


def test_multikueue_is_kept_for_queued_jobs() -> None:
    multikueue = "kueue.x-k8s.io/multikueue"
    found = job(pytorchReplicaSpecs={"Master": replica()}, runPolicy={"managedBy": multikueue})
    loose = convert_object(found)
    assert "managedBy" not in spec_of(loose)
    assert "managedBy" in fields(loose)
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    queued = convert_object({**found, "metadata": {"name": "digits", "labels": labels}})
    spec = spec_of(queued)
    assert (spec["managedBy"], spec["scheduling"]) == (multikueue, {"queueName": "team"})
    assert "managedBy" not in fields(queued)


def test_index_of_a_replica_names_our_label() -> None:
    field = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}}
    env = {"env": [{"name": "INDEX", "valueFrom": field}]}
    both = convert_object(
        job(pytorchReplicaSpecs={"Master": replica(), "Worker": replica(3, **env)})
    )
    said = " ".join(note.text for note in both.notes)
    assert "use ddp-operator.io/replica-index, which is 0 for the master" in said
    alone = spec_of(convert_object(job(pytorchReplicaSpecs={"Worker": replica(3, **env)})))
    assert "ddp-operator.io/replica-index" in str(alone["template"])
