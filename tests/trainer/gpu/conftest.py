"""These tests are asked for by name: without a GPU they fail, and are not left out."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """There is one."""
    # Asks NVML: the forks of this process must find CUDA untouched.
    assert torch.cuda.device_count() > 0, "these tests need a GPU"
