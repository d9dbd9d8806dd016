"""Gives a batch to the script more than once, each time as it was read.

What a script adds to or removes from a container, it does to a copy of that container. Tensors are
not copied. If one has changed when the batch is due again, the batch must be read again.
"""

from __future__ import annotations

import copy
import numbers
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from torch import Tensor

_CONSTANT = (str, bytes, numbers.Number, Enum, type(None))
"""Types of objects that no script can change."""


class Original:
    """A batch as it was read."""

    def __init__(self, batch: Any) -> None:
        self._batch, self._leaves = batch, [*_leaves(batch)]
        self._versions = [_version(leaf) for leaf in self._leaves]

    def copy(self) -> Any:
        """Return the batch in new containers, with the same tensors."""
        return _mapped(self._batch, lambda leaf: leaf)

    @property
    def is_unchanged(self) -> bool:
        """Return whether the tensors are known to be as they were read.

        torch counts the changes of a tensor, but not those through `.data` or NumPy. Of objects of
        other types nothing is known.
        """
        return all(
            known is not None and known == _version(leaf)
            for known, leaf in zip(self._versions, self._leaves, strict=True)
        )


def _version(leaf: Any) -> tuple[Any, ...] | None:
    """Return what tells a changed object from an unchanged one; None: nothing does."""
    if isinstance(leaf, _CONSTANT):
        return ()
    if not isinstance(leaf, Tensor) or leaf.is_inference():
        return None
    return leaf._version, leaf.requires_grad, leaf.is_leaf and leaf.grad is None


def _leaves(batch: Any) -> Iterator[Any]:
    found: list[Any] = []
    _mapped(batch, found.append)
    yield from found


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value in new containers, in which each other object is replaced."""
    again: Callable[[Any], Any] = lambda part: _mapped(part, change)  # noqa: E731
    made: Any
    if isinstance(value, UserDict):  # such as the BatchEncoding of transformers
        made = copy.copy(value)
        made.data = again(value.data)
        return made
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update((key, again(part)) for key, part in value.items())
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(again, value))
    if type(value) in (list, tuple):
        return type(value)(map(again, value))
    if is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in fields(value):
            object.__setattr__(made, field.name, again(getattr(value, field.name)))
        return made
    return change(value)
