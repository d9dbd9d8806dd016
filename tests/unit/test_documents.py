import io
from typing import Any

import pytest
import yaml
from ddp_client import documents
from ddp_client.convert import of_manifests
from ddp_client.documents import MAX_BYTES, DocumentError, read, read_text

from tests.unit.convert.examples import PYTORCHJOB, load


def merges(levels: int) -> str:
    """A mapping of 9 to the power of `levels` fields, all of them merged."""
    nested = (
        f"x{level}: &x{level} {{<<: [{', '.join([f'*x{level - 1}'] * 9)}]}}"
        for level in range(1, levels + 1)
    )
    return "\n".join(["x0: &x0 {a: 1}", *nested])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("---\na: 1\n" * 101, "more than 100 objects"),
        ("---\n" * 200_000, "more than 100000 values"),
        ("[" * 90_000, "nests more than 100 deep"),
        ("a: " + "[" * 200 + "]" * 200, "nests more than 100 deep"),
        ("a: [" + "1," * 400_000 + "]", "more than 100000 values"),
        ("a: &a [x,x]\n" + "\n".join(f"{n}: &{n} [*{p},*{p}]" for p, n in zip("abcdefghijklmnopqr", "bcdefghijklmnopqrs")), "more than 100000 values"),  # noqa: B905, E501
        (merges(30), "more than 100000 values"),
        ("a: &a {<<: *a}", "refers to itself"),
        ("a: " + "1:" * 400_000 + "1", "a number of more than 64 bits"),
        ("a: " + "1:" * 400_000 + "1.5", "a number of more than 64 bits"),
        ("a: 0x" + "f" * 400_000, "a number of more than 64 bits"),
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
    with pytest.raises(DocumentError, match=why):
        read(text)


@pytest.mark.parametrize(
    "text", ["a: [" + "1," * 400_000 + "]", "a: {" + "b: 1, " * 400_000 + "}", "---\n" * 400_000]
)
def test_values_are_counted_before_any_is_built(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    monkeypatch.setattr(documents._Loader, "construct_document", built.append)
    with pytest.raises(DocumentError, match="more than 100000 values"):
        read(text)
    assert built == []


def test_file_that_is_too_long_is_not_read_to_its_end() -> None:
    file = io.BytesIO(b"x" * (2 * MAX_BYTES))
    with pytest.raises(DocumentError, match="more than 2097152 bytes; split it"):
        read_text(file)
    assert file.tell() == MAX_BYTES + 1
    with pytest.raises(DocumentError, match="not UTF-8"):
        read_text(io.BytesIO(b"\xff"))


def test_values_are_those_of_yaml() -> None:
    text = "{a: [1, 1.5, 1:30, 0x1f, 1_000, yes, ~, 2026-01-02], b: &b {c: d}, e: {<<: *b, f: 1e3}}"
    assert read(text) == [
        {
            "a": [1, 1.5, 90, 31, 1000, True, "2026-01-02"],
            "b": {"c": "d"},
            "e": {"c": "d", "f": "1e3"},
        }
    ]


def test_list_of_kubectl_becomes_several_jobs() -> None:
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
