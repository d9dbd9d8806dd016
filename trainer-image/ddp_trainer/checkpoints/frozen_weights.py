"""Weights that training does not change; they are not written with every checkpoint.

A weight counts as frozen while it needs no gradient and shows no sign of a change. This does not
read all of it. It must be the same tensor object, at the same address, with the same version
counter of torch, and with the same values at 256 places. The counter detects changes by torch's own
operations. The values detect changes that torch does not count: a write through `.data`, or by a
kernel of another library. An uncounted change that misses all of these places is not detected;
averages of weights and running statistics change all values.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.checkpoints.manifest import DamagedError, FrozenFile
from ddp_trainer.checkpoints.snapshot import memory_of
from ddp_trainer.checkpoints.storage import Recorder
from ddp_trainer.devices.gate import expect
from ddp_trainer.devices.marks import mark
from ddp_trainer.run.train_state import TrainState

MIN_BYTES = 1 << 20
"""Smaller weights are in every checkpoint."""
_SAMPLES = 256
_SAMPLE_SECONDS = 300.0
"""A GPU that takes longer to read the samples hangs."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_Name = tuple[str, str]
"""Part of the run, and key in its state_dict."""
_Mark = tuple[object, ...]
"""Equal as long as the tensor shows no sign of a change."""


@dataclass(eq=False)
class FrozenWeights:
    """The weights of a run that have not changed since `of` was called.

    A weight that has changed once never counts as frozen again.
    """

    _tensors: Mapping[_Name, Tensor]
    _marks: Mapping[_Name, _Mark]
    file: FrozenFile | None = None
    """The file that contains them, perhaps with others that have changed since; None: none."""

    @classmethod
    def of(cls, run: TrainState) -> FrozenWeights:
        """Note all large weights as they are now, before training changes them."""
        tensors = _weights(run.state_dict(), run)
        return cls(tensors, _marks(tensors))

    def __bool__(self) -> bool:
        return bool(self._tensors)

    @property
    def pending_bytes(self) -> int:
        """Return the bytes of the tensors, or 0 once a file contains them."""
        return sum(tensor.nbytes for tensor in self._tensors.values()) if self.file is None else 0

    def split(self, run: TrainState) -> tuple[dict[str, Any], FrozenWeights]:
        """Return the run's state without the weights that are still frozen, and these weights.

        Raises:
            LostDeviceError: the device hangs.
        """
        state = run.state_dict()
        trained = {each.data_ptr() for each in _parameters(run) if each.requires_grad}
        same = {
            name: tensor
            for name, tensor in _weights(state, run).items()
            if self._tensors.get(name) is tensor and tensor.data_ptr() not in trained
        }
        changed = self._changed(same)
        still = {name: tensor for name, tensor in same.items() if name not in changed}
        for part in {part for part, _ in still}:
            state[part] = copy.copy(state[part])  # the original may be the part's own
        for part, key in still:
            del state[part][key]
        return state, FrozenWeights(still, self._marks, self.file)

    def write(self, file: Recorder) -> None:
        """Write them as torch.save does: a dictionary of each part's tensors by key."""
        parts: dict[str, dict[str, Tensor]] = {}
        for (part, key), tensor in self._tensors.items():
            parts.setdefault(part, {})[key] = tensor.detach().as_subclass(Tensor)
        torch.save(parts, file)  # type: ignore[arg-type]

    def check(self) -> None:
        """Check that they are unchanged after they were written beside the training.

        Raises:
            DamagedError: one of them has changed, so the file may contain a mixture.
        """
        if changed := self._changed(self._tensors):
            names = ", ".join(sorted(f"{part}.{key}" for part, key in changed)[:3])
            raise DamagedError(f"frozen weights changed while they were written: {names}")

    def _changed(self, tensors: Mapping[_Name, Tensor]) -> set[_Name]:
        return {name for name, now in _marks(tensors).items() if now != self._marks[name]}


def merge(state: dict[str, Any], frozen: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Add frozen weights to a state; weights already in the state are newer and stay."""
    for part, weights in frozen.items():
        for key, tensor in weights.items():
            state[part].setdefault(key, tensor)


def _weights(state: Mapping[str, Any], run: TrainState) -> dict[_Name, Tensor]:
    """Find the models' large parameters and buffers in a state, by name."""
    tensors = chain(_parameters(run), run.buffers())
    own = {memory_of(tensor): tensor for tensor in tensors if _can_be_stored(tensor)}
    return {
        (part, key): own[memory]
        for part, values in state.items()
        if isinstance(values, Mapping)
        for key, value in values.items()
        if isinstance(value, Tensor)
        and _can_be_stored(value)
        and (memory := memory_of(value)) in own
    }


def _parameters(run: TrainState) -> Iterator[Tensor]:
    return chain.from_iterable(model.parameters() for model in run.models)


def _can_be_stored(tensor: Tensor) -> bool:
    """Return whether a tensor is large, has a version counter, and shares no memory."""
    return (
        not hasattr(tensor, "__tensor_flatten__")  # it would consist of others
        and tensor.nbytes >= MIN_BYTES
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.dtype.itemsize in _BITS
        and not (tensor.dtype.is_complex or tensor.is_quantized or tensor.is_inference())
        and tensor.untyped_storage().nbytes() == tensor.nbytes
    )


def _marks(tensors: Mapping[_Name, Tensor]) -> dict[_Name, _Mark]:
    marks: dict[_Name, _Mark] = {}
    for device in {tensor.device for tensor in tensors.values()}:
        here = {name: tensor for name, tensor in tensors.items() if tensor.device == device}
        for (name, tensor), sample in zip(
            here.items(), _samples(here.values(), device), strict=True
        ):
            marks[name] = (tensor.data_ptr(), tensor._version, tensor.shape, tensor.dtype, sample)
    return marks


def _samples(tensors: Iterable[Tensor], device: torch.device) -> list[bytes]:
    rows = torch.stack([_sample(tensor) for tensor in tensors])
    if device.type == "cuda":
        expect(mark(device), within_seconds=_SAMPLE_SECONDS, what="read the frozen weights")
    return [row.tobytes() for row in rows.cpu().numpy()]


def _sample(tensor: Tensor) -> Tensor:
    bits = tensor.detach().as_subclass(Tensor).view(_BITS[tensor.dtype.itemsize])
    # Odd, so that not all places are in the same column of a matrix.
    step = tensor.numel() // _SAMPLES | 1
    return bits.as_strided((_SAMPLES,), (step,)).to(torch.int64)
