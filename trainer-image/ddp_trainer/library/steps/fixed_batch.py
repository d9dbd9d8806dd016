"""What does not go with steps of the same samples for any number of ranks."""

from __future__ import annotations

from torch import nn

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.batch import Batch
from ddp_trainer.settings.training import DDPOptions


def check(batch: Batch, model: nn.Module, options: DDPOptions) -> None:
    """See that a model's steps can be computed by any number of ranks.

    Raises:
        ConfigurationError: they cannot; whether or not they have to be just now.
    """
    if not batch.is_fixed:
        return
    why = _obstacle(model, options, exact=batch.exact)
    if why is not None:
        raise ConfigurationError(f"{why}, which {batch.name} cannot have: {batch.remedy}")


def _obstacle(model: nn.Module, options: DDPOptions, *, exact: bool) -> str | None:
    if exact and options.gradient_compression != "none":
        return f"{options.gradient_compression} compression rounds what ranks have summed"
    modules = list(model.modules())
    if any(isinstance(module, nn.SyncBatchNorm) for module in modules):
        return "SyncBatchNorm sees as many batches as one as there are ranks"
    if any(getattr(module, "sparse", False) is True for module in modules):
        return "an embedding has sparse gradients"
    if not options.broadcast_buffers and any(True for _ in model.buffers()):
        return "without broadcast_buffers each rank has buffers of its own"
    return None
