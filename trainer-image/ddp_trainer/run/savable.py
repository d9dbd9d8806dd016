"""Checks that a state can be saved in a checkpoint and sent to other ranks.

Both are data that must not run code: torch reads only plain values and tensors from them.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.system.buffers import tensors


def pack(state: Any, *, of: str) -> bytes:
    """Return a state as bytes; `of`: name of its owner, for the error.

    Raises:
        ConfigurationError: torch could not load it again.
    """
    file = io.BytesIO()
    with _refused(of):
        torch.save(state, file)
        file.seek(0)
        if strange := torch.serialization.get_unsafe_globals_in_checkpoint(file):
            raise TypeError(f"it contains {', '.join(sorted(strange))}")
    return file.getvalue()


def check(state: Any, *, of: str) -> None:
    """Check that `pack` can save a state, without copying its tensors.

    Raises:
        ConfigurationError: it cannot.
    """
    with _refused(of):
        outline = without_tensors(state)
    pack(outline, of=of)


def without_tensors(state: Any) -> Any:
    """Return the state with empty tensors (device "meta") instead of its own."""
    holes = {id(tensor): _hole(tensor) for tensor in tensors(state)}
    return copy.deepcopy(state, dict[int, Any](holes))


@contextmanager
def _refused(of: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, AttributeError, RuntimeError, pickle.PicklingError) as error:
        raise ConfigurationError(
            f"state_dict() of {of} cannot be saved: it may contain numbers, strings, lists, "
            f"dictionaries and tensors only ({error})"
        ) from error


def _hole(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
