"""Tells a group that broke from a program, or a device, that failed.

torch reports a lost peer as a RuntimeError like any other, from wherever the collective happened to
be, often deep inside backward; only its text tells. Everything not known to be a broken group is
the program's own failure.
"""

from __future__ import annotations

import re

import torch
from torch import distributed as dist

from ddp_trainer.exit_codes import LostDeviceError, LostPeerError
from ddp_trainer.process_group import messages
from ddp_trainer.process_group.lost_peers import tells_of_lost_peer

_DeviceError = getattr(torch, "AcceleratorError", LostDeviceError)
"""torch has it since 2.8. Before, it raises a RuntimeError with the same text."""
_GLOO = re.compile("|".join(messages.GLOO))
_CUDA = re.compile("|".join(messages.CUDA))
_PLACE = re.compile(r"^\[[^]]*gloo/[^]]*\] |^(?P<who>NCCL) error in: [^,]*:\d+, ")
_ADVICE = re.compile(
    r"\. This is typically caused by .*$|,? \(run with NCCL_DEBUG[^)]*\)|, NCCL version .*$"
)


def is_lost_device(error: BaseException) -> bool:
    """Whether `error` says that this process can use its device no more.

    Its context is lost with all tensors in it, so that forming a group anew is of no use. A lack of
    memory is no such error.
    """
    if isinstance(error, LostDeviceError | _DeviceError):
        return True
    if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
        return False
    return bool(_CUDA.search(str(error)))


def is_lost_peer(error: BaseException) -> bool:
    """Whether `error` says that another rank is gone, rather than that this one failed."""
    text = str(error)
    if isinstance(error, LostPeerError):
        return True
    if is_lost_device(error):
        return False
    if isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return True
    if isinstance(error, dist.DistBackendError):
        return tells_of_lost_peer(text)
    return type(error) is RuntimeError and bool(_GLOO.search(text))


def reason(error: BaseException) -> str:
    """What happened, in one line without the places in the sources of gloo and torch, and hints."""
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    words = _PLACE.sub(lambda found: f"{found['who']}: " if found["who"] else "", first_line)
    return _ADVICE.sub("", words).strip()
