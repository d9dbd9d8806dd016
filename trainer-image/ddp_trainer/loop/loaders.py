"""How the samples of a workload are loaded: by torch's DataLoader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ddp_trainer.settings.training import LoadingOptions
from ddp_trainer.workloads.base import MapSamples, SampleSet


def loader_of(
    samples: SampleSet,
    options: LoadingOptions,
    device: torch.device,
    *,
    batch_size: int,
    shuffle: bool = False,
) -> DataLoader[Any]:
    """Return a loader of pairs (inputs, targets) for a device."""
    has_workers = options.workers > 0
    settings: dict[str, Any] = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "num_workers": options.workers,
        "prefetch_factor": options.prefetch_batches if has_workers else None,
        "persistent_workers": has_workers,
        "pin_memory": device.type == "cuda",  # copied while the GPU computes
    }
    if isinstance(samples, MapSamples):
        return DataLoader(samples.dataset, collate_fn=samples.collate, **settings)
    return DataLoader(_Batches(samples), collate_fn=_as_it_is, **settings)


class _Batches(Dataset[Any]):
    """Samples that are loaded by the batch."""

    def __init__(self, samples: SampleSet) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self._samples.batch(indices)


def _as_it_is(batch: Any) -> Any:
    return batch
