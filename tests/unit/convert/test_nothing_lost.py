"""Every field of a source is in the result, or in a note."""

import json
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from ddp_client.convert import Conversion
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.convert.examples import (
    JOBSET,
    PYTORCHJOB,
    RUNTIME,
    TRAINJOB,
    convert_object,
    load,
)

EXAMPLES = {
    "PyTorchJob": [load(PYTORCHJOB)],
    "JobSet": [load(JOBSET)],
    "TrainJob": [load(TRAINJOB), load(RUNTIME)],
}
_STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
Path = tuple[str | int, ...]
REWRITTEN = ("MASTER_PORT", "POD")
"""Variables that become other fields, without a note."""
TRAINERS: Path = (
    *(1, "spec", "template", "spec", "replicatedJobs", 1),
    *("template", "spec", "template", "spec"),
)

MEANINGLESS: dict[str, tuple[Path, ...]] = {
    "PyTorchJob": (
        # Set by the API server.
        (0, "status"),
        (0, "metadata", "uid"),
        # The default.
        (0, "spec", "pytorchReplicaSpecs", "Master", "replicas"),
    ),
    "JobSet": (
        # With one Job, any is all.
        (0, "spec", "successPolicy"),
        # One group starts at once and has indexes.
        (0, "spec", "startupPolicy"),
        (0, "spec", "replicatedJobs", 0, "template", "spec", "completionMode"),
        # The same number as parallelism, which is required.
        (0, "spec", "replicatedJobs", 0, "template", "spec", "completions"),
    ),
    "TrainJob": (
        (0, "spec", "runtimePatches", 0, "manager"),
        # The TrainJob's own override them.
        (1, "spec", "mlPolicy", "numNodes"),
        (1, "spec", "mlPolicy", "torch", "numProcPerNode"),
        (*TRAINERS, "containers", 0, "image"),
        (*TRAINERS, "containers", 0, "env", 0, "value"),
        # Two ways to name the training job; one is enough.
        (1, "spec", "template", "spec", "replicatedJobs", 1, "name"),
        (*TRAINERS[:-4], "template", "metadata", "labels", _STEP_LABEL),
        # A job with a note that it was dropped.
        (0, "spec", "podTemplateOverrides", 1, "spec"),
        (1, "spec", "template", "spec", "replicatedJobs", 0, "template"),
    ),
}


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    if not children:
        yield path
    for name, inner in children:
        yield from leaves(inner, (*path, name))


def objects(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        yield path
        for name, inner in value.items():
            yield from objects(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from objects(inner, (*path, number))


def at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def without(documents: list[Any], path: Path) -> list[Any]:
    changed = deepcopy(documents)
    del at(changed, path[:-1])[path[-1]]
    return changed


def is_meaningless(kind: str, path: Path) -> bool:
    return any(path[: len(known)] == known for known in MEANINGLESS[kind])


def is_noted(found: Conversion, path: Path) -> bool:
    """Tell whether a field, or an object around it, has a note that it was dropped."""
    if path[1:4] == ("spec", "trainer", "env"):  # the note names the pods' field
        name = at(EXAMPLES["TrainJob"], path[:5])["name"]
        return any(note.field.endswith(f".env[{name}]") for note in found.notes)
    words = ["runtime"] if path[0] == 1 else []
    for depth in range(1, len(path)):
        by_name = path[depth - 1] in ("containers", "env")
        inner = at(EXAMPLES[found.source.split()[0]], path[: depth + 1]) if by_name else None
        words.append(inner["name"] if inner else str(path[depth]))
    whole = f"{'.'.join(words)}."
    dotted = str.maketrans({"[": ".", "]": None})
    noted = [f"{note.field.translate(dotted)}." for note in found.notes if not note.carried]
    return any(whole.startswith(field) for field in noted)


def unnoticed(
    kind: str, paths: Iterable[Path], change: Callable[[list[Any], Path], list[Any]]
) -> list[Path]:
    """Return fields that can change without effect, although they have no note and a meaning."""
    documents = EXAMPLES[kind]
    whole = convert_object(*documents)
    assert whole.manifest is not None, whole.problem
    found: list[Path] = []
    for path in paths:
        if path[1] in ("apiVersion", "kind") or is_meaningless(kind, path) or is_noted(whole, path):
            continue
        other = convert_object(*change(documents, path))
        if (whole.manifest, whole.notes) == (other.manifest, other.notes):
            found.append(path)
    return found


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_leaf_makes_a_difference(kind: str) -> None:
    assert unnoticed(kind, leaves(EXAMPLES[kind]), without) == []


def with_another_value(documents: list[Any], path: Path) -> list[Any]:
    changed, value = deepcopy(documents), at(documents, path)
    other = not value if isinstance(value, bool) else value + (1 if isinstance(value, int) else "x")
    at(changed, path[:-1])[path[-1]] = other
    return changed


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_value_makes_a_difference(kind: str) -> None:
    documents = EXAMPLES[kind]
    scalars = [path for path in leaves(documents) if isinstance(at(documents, path), str | int)]
    assert unnoticed(kind, scalars, with_another_value) == []


@pytest.mark.parametrize("kind", EXAMPLES)
def test_meaningless_fields_exist_and_change_nothing(kind: str) -> None:
    documents = EXAMPLES[kind]
    for path in MEANINGLESS[kind]:
        whole, less = convert_object(*documents), convert_object(*without(documents, path))
        assert (whole.manifest, whole.notes) == (less.manifest, less.notes), path


@given(data=st.data())
def test_unknown_field_is_kept_or_noted(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(EXAMPLES)))
    documents = deepcopy(EXAMPLES[kind])
    path = data.draw(st.sampled_from([p for p in objects(documents) if p]))
    if is_meaningless(kind, path) or (path[0], path[1:2]) == (1, ("metadata",)):
        return  # a runtime's metadata is not the job's
    if "env" in path:
        name = at(documents, path[: path.index("env") + 2])["name"]
        if name in REWRITTEN or (path[0], name) == (1, "A"):  # the TrainJob's own overrides it
            return
    value = data.draw(st.sampled_from(["7", {"deep": "7"}, [{"deep": "7"}]]))
    text_alone = path[-1] in ("labels", "annotations", "nodeSelector", "limits")
    at(documents, path)["surprise"] = "7" if text_alone else value
    found = convert_object(*documents)
    kept = "surprise" in json.dumps(found.manifest) or "surprise" in found.problem
    assert kept or is_noted(found, (*path, "surprise"))
