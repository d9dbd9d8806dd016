"""What a state may consist of, so that a checkpoint can hold it and other ranks can take it over.

Both are data, which must not be able to run code: torch reads plain values and tensors out of them.
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
    """As bytes; `of`: whose state it is, for people.

    Raises:
        ConfigurationError: torch could not read it again.
    """
    file = io.BytesIO()
    with _refused(of):
        torch.save(state, file)
        file.seek(0)
        if strange := torch.serialization.get_unsafe_globals_in_checkpoint(file):
            raise TypeError(f"it holds {', '.join(sorted(strange))}")
    return file.getvalue()


def check(state: Any, *, of: str) -> None:
    """See that `pack` can do it, without its tensors.

    Raises:
        ConfigurationError: it cannot.
    """
    with _refused(of):
        outline = without_tensors(state)
    pack(outline, of=of)


def without_tensors(state: Any) -> Any:
    """The same with tensors that hold nothing ("meta") in the place of its own."""
    holes = {id(tensor): _hole(tensor) for tensor in tensors(state)}
    return copy.deepcopy(state, dict[int, Any](holes))


@contextmanager
def _refused(of: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, AttributeError, RuntimeError, pickle.PicklingError) as error:
        raise ConfigurationError(
            f"state_dict() of {of} cannot be saved: let it consist of numbers, strings, lists, "
            f"dictionaries and tensors ({error})"
        ) from error


def _hole(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
