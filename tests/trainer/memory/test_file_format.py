"""Snapshot files return states unchanged, and damaged files are refused."""

from __future__ import annotations

import contextlib
import json
import re
import struct
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from ddp_trainer.memory.file_format import (
    MAX_BUFFERS,
    MAX_HEADER_BYTES,
    Buffer,
    DamagedSnapshotError,
    decode,
    place,
)
from ddp_trainer.memory.restoration import MismatchError
from ddp_trainer.memory.state_tree import flatten
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.memory.sameness import same
from tests.trainer.memory.states import NAME, restored, snapshot_file, states

_PREFIX = struct.Struct("<8sQ")


class QuantisedLike(torch.Tensor):
    """A tensor that consists of others."""


@given(states())
def test_state_survives_its_file(state: Any) -> None:
    assert same(restored(snapshot_file(state)), state)


@given(states())
def test_a_state_fills_one_of_the_same_structure(state: Any) -> None:
    def emptied(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            return torch.zeros_like(part)
        if isinstance(part, dict):
            return type(part)((key, emptied(item)) for key, item in part.items())
        return type(part)(map(emptied, part)) if isinstance(part, list | tuple) else part

    def tensors(part: Any) -> list[torch.Tensor]:
        if isinstance(part, torch.Tensor):
            return [part]
        parts = part.values() if isinstance(part, dict) else part
        return (
            [tensor for each in parts for tensor in tensors(each)]
            if isinstance(part, dict | list | tuple)
            else []
        )

    into = emptied(state)
    found = restored(snapshot_file(state), into)
    assert same(found, state)
    assert [id(tensor) for tensor in tensors(found)] == [id(tensor) for tensor in tensors(into)]


def test_everything_of_optimizers_and_schedulers_is_kept() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "numpy": np.random.default_rng(1).bit_generator.state,
        "legacy": np.random.get_state(),
    }
    found = restored(snapshot_file(state))
    assert same(found, state)
    assert found["model"]._metadata == vars(model.state_dict())["_metadata"]
    assert isinstance(found["scheduler"]["milestones"], Counter)


def test_a_new_optimizer_receives_its_state() -> None:
    state = {"optimizer": {"state": {0: {"step": torch.ones(())}}, "lr": 0.1}, "losses": [1.0]}
    into = {"optimizer": {"state": {}, "lr": 0.2}, "losses": []}
    assert same(restored(snapshot_file(state), into), state)


def test_tied_weights_are_saved_once_and_stay_tied() -> None:
    weight = torch.randn(100)
    file = snapshot_file({"in": weight, "out": weight.view(-1), "half": weight[:50]})
    assert len(decode(memoryview(file))[0].buffers) == 2
    found = restored(file)
    assert found["in"] is found["out"]
    assert same(found["half"], weight[:50])


def test_conjugated_tensor_has_its_own_buffer() -> None:
    value = torch.randn(3, dtype=torch.complex64)
    buffers = flatten([value, value.conj()]).buffers
    assert len(buffers) == 2


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ({"optimizer": {"foo": {1}}}, 'state["optimizer"]["foo"] is of type set'),
        ([defaultdict(list)], "state[0] is of type defaultdict"),
        ({"fn": test_tied_weights_are_saved_once_and_stay_tied}, 'state["fn"] is of type function'),
        ({"a": {(1, 2): 3}}, 'state["a"]: the key (1, 2)'),
        ({"a": {True: 3}}, 'state["a"]: the key True'),
        ([torch.eye(2).to_sparse()], "state[0] is sparse"),
        ([torch.empty(2, device="meta")], "state[0] is sparse or has no data"),
        ([QuantisedLike()], "state[0] is a tensor of type QuantisedLike"),
        ([np.array(["a"])], "state[0]: an array of"),
        ([np.array([None])], "state[0]: an array of object"),
        ([1 << 5000], "state[0]: the number"),
    ],
)
def test_part_that_cannot_be_saved_is_named(state: Any, error: str) -> None:
    with pytest.raises(TypeError, match=re.escape(error)):
        flatten(state)


def test_a_state_that_contains_itself_is_refused() -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(TypeError, match="contains itself"):
        flatten(state)


def test_long_plain_data_is_refused() -> None:
    with pytest.raises(ValueError, match="put long lists of numbers into tensors"):
        snapshot_file(["x" * MAX_HEADER_BYTES])


@pytest.mark.parametrize(
    ("saved", "into", "error"),
    [
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, 'only the snapshot has state["a"]'),
        ({}, {"b": torch.ones(2)}, 'only `into` has state["b"]'),
        ({"a": torch.ones(2)}, {"a": torch.ones(3)}, 'state["a"] is torch.float32 [2]'),
        ({"a": torch.ones(2)}, {"a": torch.ones(2).half()}, "torch.float16 [2] in `into`"),
        ({"a": 1}, {"a": torch.ones(2)}, 'state["a"] has tensors in `into`'),
        ({"a": b""}, {"a": torch.ones(2)}, 'state["a"] has tensors in `into`'),
        ({"a": torch.ones(2)}, {"a": [torch.ones(2)]}, "tensor in the snapshot, and list"),
        ({"a": {}}, {"a": [torch.ones(2)]}, "is a dict in the snapshot"),
        ([torch.ones(1)], [torch.ones(1)] * 2, "state is a sequence of 1"),
    ],
)
def test_a_state_of_another_structure_is_refused(saved: Any, into: Any, error: str) -> None:
    with pytest.raises(MismatchError, match=re.escape(error)):
        restored(snapshot_file(saved), into)


def test_nothing_is_filled_if_one_tensor_does_not_fit() -> None:
    into = {"a": torch.zeros(2), "b": torch.zeros(3)}
    with pytest.raises(MismatchError):
        restored(snapshot_file({"a": torch.ones(2), "b": torch.ones(2)}), into)
    assert into["a"].sum() == 0


def with_header(change: Any, state: Any = None) -> bytearray:
    """Return the file of a state with a changed header."""
    file = snapshot_file([torch.ones(4), b"abc", np.ones(2)] if state is None else state)
    header = json.loads(file[16 : 16 + _PREFIX.unpack_from(file)[1]])
    change(header)
    text = json.dumps(header).encode()
    return (
        bytearray((_PREFIX.pack(b"DDPSNAP\n", len(text)) + text).ljust(4096, b"\0")) + file[4096:]
    )


def changed(field: str, value: Any, at: int | None = None, part: int | None = None) -> Any:
    """Return a change of a header's field, of its entry `at`, or of a part of this."""

    def change(header: dict[str, Any]) -> None:
        if at is None:
            header[field] = value
        elif part is None:
            header[field][at] = value
        else:
            header[field][at][part] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("version", 2),
        changed("name", "../x"),
        changed("name", None),
        changed("jobUid", 5),
        changed("time", "now"),
        changed("buffers", None),
        changed("buffers", 5, 0),
        changed("buffers", -1, 0, 2),
        changed("buffers", 1.5, 0, 2),
        changed("buffers", True, 0, 2),
        changed("buffers", 1 << 60, 0, 3),
        changed("buffers", 1 << 40, 0, 3),
        changed("buffers", 64, 0, 2),  # overlaps the next one
        changed("buffers", 32, 1, 2),
        changed("buffers", "Module", 0, 0),
        changed("buffers", "float64", 0, 0),
        changed("buffers", "x" * 99, 0, 0),
        changed("buffers", [1 << 47] * 60, 0, 1),
        changed("buffers", [0, 1 << 47, 1 << 47], 0, 1),
        changed("buffers", [1] * 65, 0, 1),
        changed("buffers", [5], 0, 1),
        changed("buffers", "|O8", 2, 0),
        changed("buffers", "<f9", 2, 0),
        changed("buffers", [3], 2, 1),
        changed("tree", ["list", ["tensor", 3]]),
        changed("tree", ["list", ["tensor", -1]]),
        changed("tree", ["list", ["tensor", "0"]]),
        changed("tree", ["list", ["array", 0]]),
        changed("tree", ["set", 1]),
        changed("tree", []),
        changed("tree", [1]),
        changed("tree", ["dict", 1]),
        changed("tree", ["dict", [[], 1]]),
        changed("tree", ["dict", ["a", 1, 2]]),
        changed("tree", ["dtensor", 0, [], [4], [1]]),
    ],
)
def test_damaged_headers_are_refused(change: Any) -> None:
    with pytest.raises(DamagedSnapshotError):
        restored(with_header(change))


def test_many_references_to_one_array_make_one_array() -> None:
    tree = ["list", *([["array", 2]] * 50), *([["bytes", 1]] * 50)]
    found = restored(with_header(changed("tree", tree)))
    assert len({id(part) for part in found}) == 2


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "\xff", '{"version":' + "1" * 5000 + "}"])
def test_invalid_json_is_refused(text: str) -> None:
    begin = text.encode("latin-1")
    with pytest.raises(DamagedSnapshotError):
        restored(bytearray((_PREFIX.pack(b"DDPSNAP\n", len(begin)) + begin).ljust(1 << 20, b"\0")))


def test_deep_states_are_refused() -> None:
    tree: Any = 1
    for _ in range(100):
        tree = ["list", tree]
    with pytest.raises(DamagedSnapshotError, match="nested too deeply"):
        restored(with_header(changed("tree", tree)))


def test_the_number_of_buffers_has_a_limit() -> None:
    buffers = [["uint8", [0], 0, 0]] * (MAX_BUFFERS + 1)
    text = json.dumps(
        {"version": 1, "name": str(NAME), "jobUid": "", "time": 1.0, "tree": 1, "buffers": buffers}
    ).encode()
    with pytest.raises(DamagedSnapshotError, match="tensors"):
        decode(memoryview((_PREFIX.pack(b"DDPSNAP\n", len(text)) + text).ljust(1 << 25, b"\0")))


@pytest.mark.parametrize("length", [0, 15, 16, 100, 4096])
def test_files_that_are_cut_off_are_refused(length: int) -> None:
    with pytest.raises(DamagedSnapshotError):
        restored(snapshot_file([torch.ones(4)])[:length])


@settings(max_examples=150)
@given(states(), st.data())
def test_changed_bytes_raise_no_other_error(state: Any, data: st.DataObject) -> None:
    file = snapshot_file(state)
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, min(len(file), 600) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DamagedSnapshotError):
        restored(file)


def test_buffers_are_aligned_and_apart() -> None:
    placed = place([("a", (3,), 3), ("b", (0,), 0), ("c", (65,), 65), ("d", (1,), 1)])
    assert placed == [
        Buffer("a", (3,), 0, 3),
        Buffer("b", (0,), 64, 0),
        Buffer("c", (65,), 64, 65),
        Buffer("d", (1,), 192, 1),
    ]


def test_versions_of_modules_survive_without_torch_knowing() -> None:
    state: OrderedDict[str, Any] = OrderedDict(weight=torch.ones(1))
    assert not hasattr(restored(snapshot_file(state)), "_metadata")
