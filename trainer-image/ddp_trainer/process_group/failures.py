"""Tells the loss of a peer from a failure of the program or of its device.

torch reports a lost peer as an ordinary RuntimeError. It surfaces wherever the collective is, often
deep inside `backward`; only its text gives it away. Every error that is not known to mean a broken
group counts as a failure of the program.
"""

from __future__ import annotations

import re

import torch
from ddp_protocol.error_texts import Class, any_of
from torch import distributed as dist

from ddp_trainer.exit_codes import LostDeviceError, LostPeerError
from ddp_trainer.process_group.lost_peers import tells_of_lost_peer

_DeviceError = getattr(torch, "AcceleratorError", LostDeviceError)
"""New in torch 2.8. Older releases raise a RuntimeError with the same text."""
_GLOO = re.compile(any_of(Class.GLOO))
_CUDA = re.compile(any_of(Class.CUDA))
_PLACE = re.compile(r"^\[[^]]*gloo/[^]]*\] |^(?P<who>NCCL) error in: [^,]*:\d+, ")
_ADVICE = re.compile(
    r"\. This is typically caused by .*$|,? \(run with NCCL_DEBUG[^)]*\)|, NCCL version .*$"
)


def is_lost_device(error: BaseException) -> bool:
    """Return whether `error` means that this process can no longer use its device.

    Its CUDA context is lost with all tensors in it, so forming a new group does not help. Running
    out of memory is no such error.
    """
    if isinstance(error, LostDeviceError | _DeviceError):
        return True
    if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
        return False
    return bool(_CUDA.search(str(error)))


def is_lost_peer(error: BaseException) -> bool:
    """Return whether `error` means that another rank is gone, not that this one failed."""
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
    """Return the error in one line, without hints and source locations of gloo and torch."""
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    words = _PLACE.sub(lambda found: f"{found['who']}: " if found["who"] else "", first_line)
    return _ADVICE.sub("", words).strip()
