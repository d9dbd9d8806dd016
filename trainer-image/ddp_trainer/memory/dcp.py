"""Lets `torch.distributed.checkpoint` (DCP) save to the memory of the pods and load from it.

    import torch.distributed.checkpoint as dcp
    from ddp_trainer.memory.dcp import Reader, Writer

    reader = Reader()
    if reader.step is not None:
        dcp.load(state, storage_reader=reader)
    ...
    dcp.save(state, storage_writer=Writer(step), no_dist=True)

Neither needs communication between ranks, so `no_dist=True` saves that of DCP.

DCP writes a tensor that several ranks have only once, and its metadata in one rank. A snapshot
must be complete without those of other ranks. So the writer saves all items that the planner lists
for its own rank, and the reader derives the metadata from them.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from ddp_trainer.memory.loading import load
from ddp_trainer.memory.restoration import MismatchError
from ddp_trainer.memory.saving import save


class Writer(StorageWriter):
    """Saves one checkpoint of DCP as a snapshot in memory; all ranks create one."""

    def __init__(self, step: int, *, replicated: bool = False) -> None:
        """`step`, `replicated`: as in `ddp_trainer.memory.save`."""
        self._step = step
        self._replicated = replicated
        self._items: list[WriteItem] = []
        self.saved = False
        """True if this rank saved it, as `ddp_trainer.memory.save` returns it."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Refuse an ID: the step identifies a snapshot."""
        _refuse(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str] | None) -> bool:
        """Return whether an ID is accepted: none is."""
        return checkpoint_id is None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: each rank writes its own snapshot."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Take all items of this rank, and leave none for DCP to distribute between ranks.

        Raises:
            ValueError: the planner sends no items, because it keeps them from an earlier save.
        """
        if not getattr(plan, "usable", True):  # torch 2.7 has no such plans
            raise ValueError("the planner has enable_plan_caching=True: set it to False")
        self._items = plan.items
        return replace(plan, items=[])

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans as they are."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:  # noqa: ARG002
        """Save the snapshot; see `save`."""
        self.save(self._items, planner)
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done

    def save(self, items: Sequence[WriteItem], planner: SavePlanner, **more: str) -> None:
        """Save the snapshot of these items, which must be all of this rank.

        `more`: what else is in the snapshot.

        Raises:
            TypeError: the state contains something that cannot be saved; the message says where.
            ValueError: the state is sharded, but `replicated` is set.
        """
        tensors: dict[str, list[Any]] = {}
        objects: dict[str, Any] = {}
        for item in items:
            name, data = item.index.fqn, planner.resolve_data(item)
            if isinstance(data, io.BytesIO):
                # Only this process has written these bytes. A snapshot contains no pickle.
                data.seek(0)
                objects[name] = torch.load(data, weights_only=False)
                continue
            assert item.tensor_data is not None
            chunk, size = item.tensor_data.chunk, item.tensor_data.size
            if self._replicated and chunk.sizes != size:
                raise ValueError(f"{name} is sharded: leave out Writer(replicated=True)")
            tensors.setdefault(name, []).append([list(size), list(chunk.offsets), data])
        state = {"tensors": tensors, "objects": objects, **more}
        self.saved = save(self._step, state, replicated=self._replicated)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Do nothing: each snapshot is complete, and the launchers agree on a step."""


class Reader(StorageReader):
    """Loads the snapshot that the group resumes from; all ranks create one."""

    def __init__(self) -> None:
        """Load this rank's snapshot, as `ddp_trainer.memory.load` does.

        Raises:
            NoSnapshotError: the other ranks resume from a snapshot that this one does not get.
            MismatchError: the snapshot was not saved by a `Writer`.
        """
        found = load()
        self.step: int | None = None
        """Step of the snapshot; None: there is none in memory, so use the checkpoint."""
        self._metadata: dict[str, STORAGE_TYPES] = {}
        self._objects: dict[str, Any] = {}
        self._tensors: dict[MetadataIndex, Tensor] = {}
        if found is not None:
            self.step, state = found
            try:
                self._take(state)
            except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
                raise MismatchError(
                    f"the snapshot of step {self.step} was not saved by ddp_trainer.memory.dcp: "
                    "load it with ddp_trainer.memory.load"
                ) from error

    def _take(self, state: Any) -> None:
        self._objects = dict(state["objects"])
        self._metadata = {name: BytesStorageMetadata() for name in self._objects}
        for name, parts in state["tensors"].items():
            size = torch.Size(parts[0][0])
            chunks = [_box(offsets, tensor.shape) for _, offsets, tensor in parts]
            for chunk, (_, _, tensor) in zip(chunks, parts, strict=True):
                if tensor.numel():
                    self._tensors[MetadataIndex(name, chunk.offsets)] = tensor
            # DCP then also asks for what this rank does not have.
            missing = [_box([0] * len(size), size)]
            for chunk in chunks:
                missing = [rest for box in missing for rest in _without(box, chunk)]
            properties = TensorProperties(dtype=parts[0][2].dtype)
            self._metadata[name] = TensorStorageMetadata(properties, size, [*chunks, *missing])

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Refuse an ID: the launchers choose the snapshot."""
        _refuse(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str] | None) -> bool:
        """Return whether an ID is accepted: none is."""
        return checkpoint_id is None

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the metadata of the whole state; parts that this rank lacks are in it, too.

        Raises:
            ValueError: there is no snapshot.
        """
        if self.step is None:
            raise ValueError("there is no snapshot in memory: load only if Reader.step is set")
        return Metadata(self._metadata)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: each rank reads its own snapshot."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Check that the snapshot has everything, before anything is loaded.

        Raises:
            MismatchError: this rank had another part of a tensor.
        """
        for item in plan.items:
            if _is_tensor(item) and item.storage_index not in self._tensors:
                name, offsets = item.storage_index.fqn, list(item.storage_index.offset or ())
                raise MismatchError(
                    f"{name} was sharded otherwise when it was saved: this rank needs a part at "
                    f"{offsets} that it did not have; use the same device mesh"
                )
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Load the items.

        Raises:
            MismatchError: a tensor has another data type than the snapshot.
        """
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                data = io.BytesIO()
                torch.save(self._objects[item.storage_index.fqn], data)
                data.seek(0)
                planner.load_bytes(item, data)
            elif _is_tensor(item):
                source = self._tensors[item.storage_index]
                for dimension, length in enumerate(item.lengths):
                    source = source.narrow(dimension, item.storage_offsets[dimension], length)
                target = planner.resolve_tensor(item).detach()
                if target.dtype != source.dtype:
                    raise MismatchError(
                        f"{item.storage_index.fqn} is {source.dtype} in the snapshot, and "
                        f"{target.dtype} in the state"
                    )
                target.copy_(source)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _refuse(checkpoint_id: object) -> None:
    if checkpoint_id is not None:
        raise ValueError(f"checkpoint_id is {checkpoint_id!r:.80}: leave it out for the memory")


def _is_tensor(item: ReadItem) -> bool:
    """Return whether an item has elements of a tensor."""
    return item.type is LoadItemType.TENSOR and math.prod(item.lengths) > 0


def _box(offsets: Sequence[int], sizes: Sequence[int]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def _without(box: ChunkStorageMetadata, hole: ChunkStorageMetadata) -> Iterator[Any]:
    """Cut a hole out of a box; return boxes that cover the rest and do not overlap."""
    begins, ends = list(box.offsets), _ends(box)
    inner = [
        (max(begin, low), min(end, high))
        for begin, end, low, high in zip(begins, ends, hole.offsets, _ends(hole), strict=True)
    ]
    if any(low >= high for low, high in inner):
        yield box
        return
    for dimension, (low, high) in enumerate(inner):
        for begin, end in ((begins[dimension], low), (high, ends[dimension])):
            if begin < end:
                offsets, stops = begins.copy(), ends.copy()
                offsets[dimension], stops[dimension] = begin, end
                sizes = [stop - start for start, stop in zip(offsets, stops, strict=True)]
                yield _box(offsets, sizes)
        begins[dimension], ends[dimension] = low, high


def _ends(box: ChunkStorageMetadata) -> list[int]:
    return [begin + size for begin, size in zip(box.offsets, box.sizes, strict=True)]
