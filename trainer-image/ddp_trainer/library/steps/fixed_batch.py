"""Refuses what cannot keep a step's samples with any number of ranks: models, loaders, options."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from ddp_trainer.data.loaders import is_stream
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.batch import Batch
from ddp_trainer.settings.training import DDPOptions


def check(batch: Batch, model: nn.Module, options: DDPOptions) -> None:
    """Check that any number of ranks can compute a model's steps.

    Raises:
        ConfigurationError: they cannot, even if the present number of ranks could.
    """
    if not batch.is_fixed:
        return
    why = _obstacle(model, options, exact=batch.exact)
    if why is not None:
        raise ConfigurationError(f"{why}, which {batch.name} cannot have: {batch.remedy}")


def check_loader(batch: Batch, loader: DataLoader[Any]) -> None:
    """Check that any number of ranks can read the samples of a step.

    Raises:
        ConfigurationError: they cannot.
    """
    if not batch.is_fixed:
        return
    if is_stream(loader):
        raise ConfigurationError(
            "the loader has an IterableDataset, so each rank reads its own stream, but "
            f"{batch.name} needs the same samples with any number of ranks: {batch.remedy}"
        )
    if loader.batch_size is None:
        raise ConfigurationError(
            f"the loader has a batch_sampler, but {batch.name} may have to split its batches: "
            f"{batch.remedy}, or give the DataLoader a batch_size and a sampler"
        )


def _obstacle(model: nn.Module, options: DDPOptions, *, exact: bool) -> str | None:
    if exact and options.gradient_compression != "none":
        return f"{options.gradient_compression} compression rounds sums of ranks"
    modules = list(model.modules())
    if any(isinstance(module, nn.SyncBatchNorm) for module in modules):
        return "SyncBatchNorm normalizes over as many batches as there are ranks"
    if any(getattr(module, "sparse", False) is True for module in modules):
        return "an embedding has sparse gradients"
    if not options.broadcast_buffers and any(True for _ in model.buffers()):
        return "without broadcast_buffers each rank has its own buffers"
    return None
