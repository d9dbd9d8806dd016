import pytest
from ddp_operator.convert import MAX_BYTES, ConversionError, of_manifests

from tests.unit.convert.examples import PYTORCHJOB, load


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x" * (MAX_BYTES + 1), "more than 1048576 bytes"),
        ("---\na: 1\n" * 101, "more than 100 objects"),
        ("[" * 90_000, "nested too deeply"),
        ("a: " + "[" * 200 + "]" * 200, "nests more than 100 deep"),
        ("a: &a [x,x]\n" + "\n".join(f"{n}: &{n} [*{p},*{p}]" for p, n in zip("abcdefghijklmnopqr", "bcdefghijklmnopqrs")), "more than 100000 values"),  # noqa: B905, E501
        ("a: [", "is not YAML"),
        ("a: !!bool seven", "is not YAML"),
        ("a: !!python/object:os.system {}", "is not YAML"),
        ("a: 2026-13-45", "is not YAML"),
        ('a: "\\ud800"', "is not YAML"),
        ("a: .inf", "a value of type float"),
        ("a: !!binary aGk=", "a value of type bytes"),
        (f"a: {'9' * 30}", "more than 64 bits"),
        ("just words", "something other than Kubernetes objects"),
        ("{kind: List, items: 7}", "items: a List"),
    ],
)  # fmt: skip
def test_hostile_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConversionError, match=why):
        of_manifests(text)


def test_list_of_kubectl_becomes_several_jobs() -> None:
    import yaml  # noqa: PLC0415

    text = yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": [load(PYTORCHJOB)] * 2})
    assert [one.source for one in of_manifests(text)] == ["PyTorchJob digits"] * 2


def test_other_objects_get_a_note_and_other_jobs_a_problem() -> None:
    text = "{kind: ConfigMap, apiVersion: v1}\n---\n{kind: MPIJob, apiVersion: kubeflow.org/v1}"
    config, mpi = of_manifests(text)
    assert (config.manifest, config.problem) == (None, "")
    assert [note.field for note in config.notes] == ["v1 ConfigMap"]
    assert mpi.problem.startswith("kubeflow.org/v1 MPIJob: ")


@pytest.mark.parametrize("kind", ["PyTorchJob", "JobSet", "TrainJob"])
@pytest.mark.parametrize("spec", ["7", "[]", "{replicatedJobs: {}}", "{pytorchReplicaSpecs: []}"])
def test_spec_of_wrong_shape_names_the_field(kind: str, spec: str) -> None:
    versions = {
        "PyTorchJob": "kubeflow.org/v1",
        "JobSet": "jobset.x-k8s.io/v1alpha2",
        "TrainJob": "trainer.kubeflow.org/v1alpha1",
    }
    text = f"{{kind: {kind}, apiVersion: {versions[kind]}, metadata: {{name: a}}, spec: {spec}}}"
    (found,) = of_manifests(text)
    assert found.manifest is None
    assert found.problem.startswith("spec")
