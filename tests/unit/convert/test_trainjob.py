from ddp_client.convert import of_manifests

from tests.unit.convert.examples import (
    RUNTIME,
    TRAINJOB,
    convert,
    convert_object,
    fields,
    load,
    spec_of,
)


def test_the_whole_example() -> None:
    found = convert(TRAINJOB + "---" + RUNTIME)
    spec = spec_of(found)
    assert spec["replicas"] == 2
    assert spec["nprocPerNode"] == 4
    assert spec["restart"] == {"maxRestarts": 3}
    assert spec["suspend"] is True
    assert spec["activeDeadlineSeconds"] == 50
    assert spec["ttlSecondsAfterFinished"] == 30
    assert "scheduling" not in spec
    assert spec["template"] == {
        "metadata": {"labels": {"tier": "gold"}},
        "spec": {
            "serviceAccountName": "trains",
            "nodeSelector": {"disk": "fast"},
            "containers": [
                {
                    "name": "node",
                    "image": "registry.example.com/words:1",
                    "command": ["torchrun"],
                    "args": ["train.py", "--peer", "$(MASTER_ADDR):1"],
                    "env": [{"name": "A", "value": "mine"}, {"name": "B", "value": "b"}],
                    "resources": {"requests": {"cpu": "3"}},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}},
            ],
        },
    }
    assert {"spec.initializer", "runtime.spec.podGroupPolicy.volcano"} <= set(fields(found))


def test_numbers_of_the_runtime_are_the_default() -> None:
    job = load(TRAINJOB)
    del job["spec"]["trainer"]["numNodes"]
    del job["spec"]["trainer"]["numProcPerNode"]
    spec = spec_of(convert_object(job, load(RUNTIME)))
    assert (spec["replicas"], spec["nprocPerNode"]) == (5, 3)


def test_torchrun_without_gpus_starts_a_process_for_each_cpu() -> None:
    job, runtime = load(TRAINJOB), load(RUNTIME)
    del job["spec"]["trainer"]["numProcPerNode"]
    runtime["spec"]["mlPolicy"]["torch"] = {}
    assert spec_of(convert_object(job, runtime))["nprocPerNode"] == 3
    job["spec"]["trainer"]["resourcesPerNode"] = {"limits": {"cpu": "1500m"}}
    assert spec_of(convert_object(job, runtime))["nprocPerNode"] == 2
    job["spec"]["trainer"]["resourcesPerNode"] = {"limits": {"cpu": 8, "nvidia.com/gpu": 4}}
    assert "nprocPerNode" not in spec_of(convert_object(job, runtime))


def test_built_in_runtime_is_known_and_noted_as_an_assumption() -> None:
    job = load(TRAINJOB)
    job["spec"]["runtimeRef"] = {"name": "torch-distributed"}
    del job["spec"]["podTemplateOverrides"]  # they mount a volume of another runtime
    found = convert_object(job)
    assert spec_of(found)["replicas"] == 2
    assert "spec.runtimeRef.name" in fields(found)


def test_mount_without_its_volume_is_a_problem() -> None:
    runtime = load(RUNTIME)
    inner = runtime["spec"]["template"]["spec"]
    inner["volumeClaimPolicies"] = [{"templates": [{"metadata": {"name": "data"}}]}]
    [trains] = [one for one in inner["replicatedJobs"] if one["name"] == "node"]
    trains["template"]["spec"]["template"]["spec"].pop("volumes", None)
    found = convert_object(load(TRAINJOB), runtime)
    assert found.manifest is None
    assert found.problem.startswith("container node mounts data, which is not in the template's")


def test_numbers_of_processes_in_job_and_runtime_are_both_read() -> None:
    runtime = load(RUNTIME)
    runtime["spec"]["mlPolicy"]["torch"] = {"numProcPerNode": "auto"}
    found = convert_object(load(TRAINJOB), runtime)
    assert spec_of(found)["nprocPerNode"] == 4
    assert not any("mlPolicy.torch" in field for field in fields(found))


def test_runtime_that_is_not_in_the_file_is_a_problem() -> None:
    found = convert(TRAINJOB)
    assert found.problem.startswith("spec.runtimeRef.name: TrainingRuntime ours is not in the file")


def test_another_framework_is_refused() -> None:
    runtime = load(RUNTIME)
    runtime["spec"]["mlPolicy"]["mpi"] = {"numProcPerNode": 2}
    found = convert_object(load(TRAINJOB), runtime)
    assert found.problem.startswith("runtime.spec.mlPolicy.mpi: ")


def test_two_jobs_may_share_a_runtime() -> None:
    found = of_manifests("---".join([TRAINJOB, RUNTIME, TRAINJOB]))
    assert [one.source for one in found] == ["TrainJob words", "TrainJob words"]
    assert found[0].manifest == found[1].manifest is not None
