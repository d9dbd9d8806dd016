"""A program's own errors are not a broken group, even with similar words.

`test_recovery` breaks real groups.
"""

from __future__ import annotations

import pytest
import torch
from ddp_trainer.exit_codes import RendezvousTimeoutError
from ddp_trainer.process_group.failures import is_lost_peer, reason
from torch import distributed as dist


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"),
        RuntimeError("reading the data set failed: Connection reset by peer"),
        RuntimeError("CUDA error: out of memory"),
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError("Timed out waiting for the data set"),
        ValueError("gloo/transport/tcp/pair.cc:537 Read error: quoted in an error of mine"),
        dist.DistBackendError("NCCL error: ncclInvalidUsage: Duplicate GPU detected"),
        dist.DistBackendError(
            "NCCL error: ncclSystemError: Last error:\nError while creating shared memory segment "
            "/dev/shm/nccl-x (size 9637892), error: No space left on device (28)"
        ),
    ],
)
def test_own_error_is_no_lost_peer(error: Exception) -> None:
    assert not is_lost_peer(error)


@pytest.mark.parametrize(
    "error",
    [
        RendezvousTimeoutError("gave up"),
        dist.DistBackendError("NCCL error: ncclRemoteError: remote process exited"),
        dist.DistBackendError(
            "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
            "key-value store by key '0', but store->get('0') got error: Socket Timeout"
        ),
        dist.DistBackendError("NCCL timeout in communicator initialization."),
        dist.DistStoreError("Timeout waiting for key: default_pg/0/0 after 1800000 ms"),
        RuntimeError("[/x/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 9ms for recv"),
    ],
)
def test_error_of_another_rank_is_a_lost_peer(error: Exception) -> None:
    assert is_lost_peer(error)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError(
                "[/src/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
                "[10.0.0.7]:20615. This is typically caused by a remote worker crashing. Check it."
            ),
            "Connection closed by peer [10.0.0.7]:20615",
        ),
        (
            dist.DistNetworkError("Failed to recv, got 0 bytes.\nstack"),
            "Failed to recv, got 0 bytes.",
        ),
        (
            dist.DistBackendError(
                "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3780, "
                "remote process exited or there was a network error, NCCL version 2.28.9\nstack"
            ),
            "NCCL: remote process exited or there was a network error",
        ),
        (
            dist.DistBackendError(
                "NCCL error in: NCCLUtils.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO "
                "for details), NCCL version 2.28.9"
            ),
            "NCCL: unhandled system error",
        ),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_reason_is_short(error: Exception, words: str) -> None:
    assert reason(error) == words


def test_torch_before_2_8_has_no_type_for_errors_of_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch, "AcceleratorError", raising=False)
    lost = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer"
    assert is_lost_peer(RuntimeError(lost))
    assert not is_lost_peer(RuntimeError("CUDA error: device-side assert triggered"))
