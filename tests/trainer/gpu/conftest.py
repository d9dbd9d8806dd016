"""Without a GPU these tests fail and are not skipped, because they run only by name."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """Check that the machine has a GPU."""
    # This asks NVML, because CUDA must not be initialised before forks.
    assert torch.cuda.device_count() > 0, "these tests need a GPU"
