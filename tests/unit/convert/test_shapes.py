"""Jobs in published forms, and their expected results."""

from collections.abc import Mapping
from typing import Any

import pytest
from ddp_client.convert import Conversion, of_command_line, of_manifests

from tests.unit.convert.examples import convert_object, spec_of

Json = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"


COMMAND_LINE = "ddp convert -- torchrun"


def gpus(name: str = "nvidia.com/gpu", count: int = 8) -> Json:
    return {"limits": {name: count}}


def of_label(name: str) -> Json:
    return {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{name}']"}}}


def pod(*containers: Json, annotations: Mapping[str, str] | None = None, **spec: Any) -> Json:
    template: Json = {"spec": {"containers": list(containers), **spec}}
    return template | ({"metadata": {"annotations": dict(annotations)}} if annotations else {})


def container(name: str, *command: str, **fields: Any) -> Json:
    return {"name": name, "image": "i"} | ({"command": [*command]} if command else {}) | fields


def pytorchjob(worker: Json, *, master: Json | None = None, name: str = "job", **spec: Any) -> Json:
    specs = {"Worker": {"replicas": 3, "template": worker}}
    if master:
        specs["Master"] = {"template": master}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": specs, **spec},
    }


def jobset(template: Json, *, replicas: int = 1, pods: int = 4, name: str = "set") -> Json:
    batch = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": template}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "replicatedJobs": [{"name": "w", "replicas": replicas, "template": {"spec": batch}}]
        },
    }


def batch_job(template: Json, *, pods: int = 4, **spec: Any) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "idx"},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "completionMode": "Indexed",
            "template": template,
            **spec,
        },
    }


def trainjob(**trainer: Any) -> Json:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "train"},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"image": "i", **trainer}},
    }


def trainer_of(found: Conversion) -> Json:
    first: Json = spec_of(found)["template"]["spec"]["containers"][0]
    return first


def notes(found: Conversion) -> str:
    return "\n".join(map(str, found.notes))


@pytest.mark.parametrize(
    "resource",
    [
        *("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "nvidia.com/gpu.shared"),
        *("nvidia.com/mig-1g.10gb", "aws.amazon.com/neuroncore", "google.com/tpu"),
        *("gpu.intel.com/xe", "huawei.com/Ascend910", "amd.com/cpx_nps4"),
    ],
)
def test_accelerators_and_not_cpus_give_the_number_of_processes(resource: str) -> None:
    resources = {"limits": {resource: 8}, "requests": {resource: 8, "cpu": "96"}}
    spec = spec_of(
        convert_object(trainjob(command=["torchrun", "a.py"], resourcesPerNode=resources))
    )
    assert spec.get("nprocPerNode", "auto") == "auto"


def test_cpus_do_not_count_beside_resource_claims() -> None:
    resources = {"claims": [{"name": "gpus"}], "requests": {"cpu": 96}}
    found = convert_object(trainjob(command=["torchrun", "a.py"], resourcesPerNode=resources))
    assert "nprocPerNode" not in spec_of(found)


@pytest.mark.parametrize(
    "command",
    [
        *(["torchrun"], ["/usr/local/bin/torchrun"], ["python", "-mtorch.distributed.run"]),
        *(["env", "A=b", "torchrun"], ["/opt/conda/bin/python3.11", "-m", "torch.distributed.run"]),
        *(["uv", "run", "torchrun"], ["tini", "--", "torchrun"]),
    ],
)
def test_flags_about_nodes_are_removed_from_any_torchrun(command: list[str]) -> None:
    trainer = container("pytorch", *command, "--nnodes=3", "--node_rank", "0", "a.py", "--x")
    found = convert_object(pytorchjob(pod(trainer | {"resources": gpus()})))
    assert trainer_of(found)["command"] == [*command, "a.py", "--x"]
    assert "nprocPerNode" not in spec_of(found)


@pytest.mark.parametrize(
    ("line", "processes"),
    [
        ("torchrun --nproc_per_node=4 --node_rank=$(cat /rank) train.py", 4),
        ("cd /src && exec torchrun --nproc-per-node 2 train.py | tee log", 2),
        ("torchrun --nproc_per_node=$GPUS train.py", None),
    ],
)
def test_processes_are_read_from_a_shell_line(line: str, processes: int | None) -> None:
    trainer = container("pytorch", "bash", "-c", line, resources=gpus())
    found = convert_object(pytorchjob(pod(trainer)))
    assert spec_of(found).get("nprocPerNode") == processes
    assert "torchrun's flags override the operator's variables" in notes(found)


def test_an_entrypoint_may_start_a_process_for_each_gpu() -> None:
    found = convert_object(pytorchjob(pod(container("pytorch", args=["--x"], resources=gpus()))))
    assert "nprocPerNode" not in spec_of(found)
    assert "set spec.nprocPerNode: 1 if it starts one" in notes(found)


def test_other_launcher_gets_a_note_about_its_flags() -> None:
    line = "accelerate launch --num_machines $WORLD_SIZE --machine_rank $RANK a.py"
    found = convert_object(pytorchjob(pod(container("pytorch", "sh", "-c", line))))
    assert "accelerate takes processes and pods from its own flags" in notes(found)


@pytest.mark.parametrize(
    "template",
    [
        pod(container("log"), container("main", "torchrun", "a.py", resources=gpus())),
        pod(
            container("log"),
            container("main", "torchrun", "a.py"),
            annotations={"kubectl.kubernetes.io/default-container": "main"},
        ),
    ],
)
def test_the_trainer_is_found_behind_a_side_car(template: Json) -> None:
    found = convert_object(jobset(template))
    assert trainer_of(found)["name"] == "main"
    assert "main is used as the trainer" in notes(found)


def test_container_that_the_controller_chose_is_renamed_to_trainer() -> None:
    side_car = container("viz", resources=gpus(count=1))
    found = convert_object(pytorchjob(pod(side_car, container("pytorch", "python", "a.py"))))
    assert trainer_of(found)["name"] == "trainer"
    assert "pytorch is renamed to trainer" in notes(found)


def test_hosts_of_all_pods_are_renamed() -> None:
    peers = "job-master-0:1,job-worker-0:2,job-worker-1.ns.svc:3"
    template = pod(container("pytorch", "python", "a.py", peers, "job-worker-$(I)"))
    found = convert_object(pytorchjob(template, master=template))
    first, second = "job-$(DDP_ATTEMPT)-1.job", "job-$(DDP_ATTEMPT)-2.job"
    assert trainer_of(found)["command"][2:] == [
        f"$(MASTER_ADDR):1,{first}:2,{second}.ns.svc:3",
        "job-worker-$(I)",
    ]
    assert "it builds host names from job-worker-;" in notes(found)


def test_hosts_of_a_jobset_are_renamed_by_job_and_pod() -> None:
    trainer = container("t", "python", "a.py", "set-w-1-1.set:80", "set-w-0-0.set", "set-w-1-1")
    found = convert_object(jobset(pod(trainer), replicas=2, pods=2))
    assert trainer_of(found)["command"][2:] == [
        "set-$(DDP_ATTEMPT)-3.set:80",
        "$(MASTER_ADDR)",
        "set-w-1-1",  # not a host name without the Service's name
    ]


def test_host_names_in_another_container_get_a_note() -> None:
    wait = container("wait", "sh", "-c", "nslookup job-worker-2")
    found = convert_object(
        pytorchjob(pod(container("pytorch", "python", "a.py"), initContainers=[wait]))
    )
    assert "a container other than the trainer uses the pods' host names" in notes(found)


def test_references_to_old_labels_are_renamed_or_noted() -> None:
    domain = "training.kubeflow.org"
    volume = {"path": "role", "fieldRef": {"fieldPath": f"metadata.labels['{domain}/job-role']"}}
    template = pod(
        container(
            "pytorch", "python", "a.py", env=[{"name": "J", **of_label(f"{domain}/job-name")}]
        ),
        container("log", env=[{"name": "T", **of_label(f"{domain}/replica-type")}]),
        volumes=[{"name": "info", "downwardAPI": {"items": [volume]}}],
    )
    found = convert_object(pytorchjob(template))
    field = trainer_of(found)["env"][0]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.labels['ddp-operator.io/job-name']"
    where = "spec.pytorchReplicaSpecs.Worker.template.spec"
    assert f"{where}.containers[log].env[T]: is empty: the pods have no {domain}/r" in notes(found)
    assert f"{where}.volumes[info].downwardAPI.items[0]: is empty" in notes(found)


@pytest.mark.parametrize("kind", ["matchLabels", "matchExpressions"])
def test_selectors_of_the_old_projects_labels_are_renamed(kind: str) -> None:
    name = "jobset.sigs.k8s.io/jobset-name"
    expression = {"key": name, "operator": "In", "values": ["set"]}
    selector: Json = {kind: {name: "set"} if kind == "matchLabels" else [expression]}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    spread = {"topologyKey": "zone", "maxSkew": 1, "labelSelector": {"matchLabels": {name: "set"}}}
    trainer = container("t", "torchrun", "a.py")
    template = pod(trainer, affinity=affinity, topologySpreadConstraints=[spread])
    found = convert_object(jobset(template))
    text = str(spec_of(found)["template"])
    assert name not in text
    assert text.count("ddp-operator.io/job-name") == 2
    assert "topologySpreadConstraints[0].labelSelector: now uses the label" in notes(found)


def test_selector_that_matches_no_pod_gets_a_note() -> None:
    labels = {"training.kubeflow.org/replica-type": "worker", "app": "mine"}
    spread = {"topologyKey": "zone", "labelSelector": {"matchLabels": labels}}
    template = pod(container("pytorch", "python", "a.py"), topologySpreadConstraints=[spread])
    found = convert_object(pytorchjob(template))
    said = "selects no pod, because they have no label training.kubeflow.org/replica-type"
    assert said in notes(found)
    template["metadata"] = {"labels": {"role": "x"}}
    template["spec"]["topologySpreadConstraints"] = [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"role": "x"}}}
    ]
    assert "labelSelector" not in notes(convert_object(pytorchjob(template)))


def test_range_of_nodes_is_an_elastic_group() -> None:
    found = of_command_line(["torchrun", "--nnodes=1:3", "train.py"])
    assert spec_of(found)["replicas"] == 3
    assert spec_of(found)["elastic"] == {"minReplicas": 1}
    assert "set spec.launcher: inject" in notes(found)
    trainer = container("pytorch", "torchrun", "--nnodes=1:3", "a.py")
    text = notes(convert_object(pytorchjob(pod(trainer))))
    assert "--nnodes=1:3: only this project's launcher can change the group's size" in text


def test_field_at_another_place_of_a_ddpjob_is_named() -> None:
    document = pytorchjob(pod(container("pytorch", "python", "a.py")), ttlSecondsAfterFinished=9)
    assert "set spec.ttlSecondsAfterFinished of the DDPJob" in notes(convert_object(document))
    document = jobset(pod(container("t", "torchrun", "a.py")))
    document["spec"]["replicatedJobs"][0]["template"]["spec"]["ttlSecondsAfterFinished"] = 9
    assert "set spec.ttlSecondsAfterFinished to delete the DDPJob" in notes(
        convert_object(document)
    )


def test_an_indexed_job_is_a_group() -> None:
    trainer = container(
        *("t", "torchrun", "--nnodes=4", "--node-rank=$(JOB_COMPLETION_INDEX)"),
        *("--rdzv-endpoint=idx-0.svc:29500", "a.py", "--peer", "idx-2.svc", "--run", "idx-2"),
    )
    found = convert_object(
        batch_job(
            pod(trainer | {"resources": gpus()}, subdomain="svc", restartPolicy="Never"),
            backoffLimit=2,
            ttlSecondsAfterFinished=7,
        )
    )
    spec = spec_of(found)
    assert (spec["replicas"], spec["restart"]) == (4, {"maxRestarts": 2})
    assert spec["ttlSecondsAfterFinished"] == 7
    command = ["torchrun", "a.py", "--peer", "idx-$(DDP_ATTEMPT)-2.idx", "--run", "idx-2"]
    assert trainer_of(found)["command"] == command
    assert trainer_of(found)["env"] == [{"name": "JOB_COMPLETION_INDEX", "value": "$(NODE_RANK)"}]


@pytest.mark.parametrize(
    ("rules", "policy"),
    [
        ([{"succeededIndexes": "0"}], "Rank0"),
        ([{"succeededIndexes": "0", "succeededCount": 1}], "Rank0"),
        ([{"succeededIndexes": "1"}], None),
        ([{"succeededCount": 2}], None),
        ([{"succeededIndexes": "0"}, {"succeededCount": 2}], None),
    ],
)
def test_success_of_index_0_is_success_of_rank_0(rules: list[Json], policy: str | None) -> None:
    trains = container("t", "torchrun", "a.py")
    found = convert_object(batch_job(pod(trains), successPolicy={"rules": rules}))
    assert spec_of(found).get("successPolicy") == policy
    assert ("spec.successPolicy.rules" in notes(found)) == (policy is None)


def test_a_job_that_prepares_data_stays_a_job() -> None:
    document = batch_job(pod(container("get", "python", "fetch.py")), pods=1)
    [found] = of_manifests(str(document))
    assert (found.manifest, found.problem) == (None, "")
    assert "apply it unchanged" in notes(found)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {
                "scaleTargetRef": {
                    "apiVersion": "kubeflow.org/v1",
                    "kind": "PyTorchJob",
                    "name": "a",
                }
            },
            "spec.scaleTargetRef names PyTorchJob a, which is a DDPJob now; write apiVersion: "
            "ddp-operator.io/v1alpha1, kind: DDPJob there",
        ),
        (
            {"selector": {"matchLabels": {"training.kubeflow.org/job-name": "a"}}},
            "spec.selector.matchLabels selects no pod, because they have no label "
            "training.kubeflow.org/job-name; select ddp-operator.io/job-name: NAME",
        ),
        (
            {"selector": {"matchExpressions": [{"key": "job-name", "operator": "Exists"}]}},
            "spec.selector.matchExpressions[0].key selects no pod",
        ),
        ({"selector": {"matchLabels": {"app": "a"}}}, "apply it unchanged if the job needs it"),
    ],
)
def test_object_that_names_the_old_job_gets_a_remedy(spec: Json, said: str) -> None:
    document = {"apiVersion": "x/v1", "kind": "Other", "metadata": {"name": "a"}, "spec": spec}
    [found] = of_manifests(str(document))
    assert (found.manifest, found.problem) == (None, "")
    assert said in notes(found)


@pytest.mark.parametrize(
    ("kind", "spec", "remedy"),
    [
        ("v1 Pod", {"containers": [container("t", "torchrun", "a.py")]}, COMMAND_LINE),
        ("apps/v1 Deployment", {"template": pod(container("t", "torchrun", "a.py"))}, COMMAND_LINE),
        ("apps/v1 StatefulSet", {"template": pod(container("t", resources=gpus()))}, COMMAND_LINE),
        (
            "workload.codeflare.dev/v1beta2 AppWrapper",
            {
                "components": [
                    {"template": pytorchjob(pod(container("pytorch", "torchrun", "a.py")))}
                ]
            },
            "Convert the object in its spec.components",
        ),
        (
            "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
            {"leaderWorkerTemplate": {"workerTemplate": pod(container("t", resources=gpus()))}},
            COMMAND_LINE,
        ),
        (
            "sagemaker.amazonaws.com/v1 HyperPodPyTorchJob",
            {"nprocPerNode": "8"},
            "with the template of replicaSpecs[0]",
        ),
        (
            "batch.volcano.sh/v1alpha1 Job",
            {"minAvailable": 2, "tasks": [{"name": "w", "replicas": 2}]},
            "spec.scheduling.gang to the cluster's gang scheduler",
        ),
    ],
)
def test_job_of_an_unsupported_kind_gets_a_remedy(kind: str, spec: Json, remedy: str) -> None:
    version, name = kind.split()
    document = {"apiVersion": version, "kind": name, "metadata": {"name": "x"}, "spec": spec}
    problem = convert_object(document).problem
    assert problem.startswith(f"{kind}: cannot be converted; ")
    assert remedy in problem


def test_object_that_trains_nothing_is_left_unchanged() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {}}
    [found] = of_manifests(str(service))
    assert found.problem == ""
    assert "the operator creates one with the job's name" in notes(found)


def test_torchtune_command_that_kubeflow_completes_is_refused() -> None:
    found = convert_object(trainjob(command=["tune", "run"], args=["dtype=bf16"]))
    assert "trainer.command: Kubeflow completes tune run" in found.problem


def test_annotations_of_kueue_move_to_the_pods() -> None:
    document = jobset(pod(container("t", "bash", "run.sh", resources=gpus())))
    asked = {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "600"}
    document["metadata"]["annotations"] = asked
    found = convert_object(document)
    assert spec_of(found)["template"]["metadata"]["annotations"] == asked
    assert found.manifest is not None
    assert "annotations" not in found.manifest["metadata"]


@pytest.mark.parametrize("value", ["job-worker-", "--hosts job-worker- --port 1"])
def test_prefix_of_host_names_gets_a_note(value: str) -> None:
    env = [{"name": "HOSTS", "value": value}]
    found = convert_object(pytorchjob(pod(container("pytorch", "bash", "run.sh", env=env))))
    assert "env[HOSTS]: it builds host names from job-worker-;" in notes(found)


def test_pod_name_used_as_host_name_gets_a_note() -> None:
    env = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    trainer = container("pytorch", "torchrun", "a.py", env=env)
    assert "a pod's name (metadata.name) is not its host name" in notes(
        convert_object(pytorchjob(pod(trainer)))
    )
    assert "metadata.name" not in notes(convert_object(batch_job(pod(trainer), backoffLimit=0)))


def test_script_gets_a_note_about_node_rank_variables() -> None:
    trainer = container("pytorch", "bash", "/scripts/train.sh", resources=gpus())
    assert "use PET_NODE_RANK and PET_NNODES" in notes(convert_object(pytorchjob(pod(trainer))))


def test_ignored_restart_policy_of_a_template_gets_a_note() -> None:
    template = pod(container("pytorch", "torchrun", "a.py"), restartPolicy="Never")
    said = "restartPolicy: Never; as in Kubeflow, the replicas' policy OnFailure is used"
    assert said in notes(convert_object(pytorchjob(template)))
    template = pod(container("pytorch", "torchrun", "a.py"), restartPolicy="OnFailure")
    assert "the replicas' policy" not in notes(convert_object(pytorchjob(template)))
