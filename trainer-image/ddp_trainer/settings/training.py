"""How to train: the flags of optimization, DDP, hardware and loading, each kind in its own class.

Nothing here imports torch, so that a wrong flag is reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.flags import Settings, flag

Precision = Literal["fp32", "bf16", "fp16"]
Compression = Literal["none", "fp16", "bf16"]
COMPRESSIONS: tuple[str, ...] = get_args(Compression)

_PREFETCH_BATCHES = 2


@dataclass(frozen=True, kw_only=True)
class OptimizationOptions(Settings):
    """From gradients to parameters."""

    lr: float = flag(3e-3, "peak learning rate", minimum=0)
    schedule: Literal["cosine", "constant"] = flag(
        "cosine", "what the learning rate does after the warm-up"
    )
    warmup_steps: int = flag(
        0, "optimizer steps in which the learning rate rises to its peak", minimum=0
    )
    min_lr_ratio: float = flag(
        0.0, "where the cosine ends, as a part of the peak", minimum=0, maximum=1
    )
    accumulate_steps: int = flag(
        1,
        "batches for one optimizer step; the ranks average their gradients after the last",
        minimum=1,
    )
    logical_shards: int = flag(
        0,
        "compute each step as so many ranks would, and sum their gradients in one order: the same "
        "to the bit whatever the number of ranks; 0: as many shards as ranks, summed as they come",
        minimum=0,
    )
    clip_grad_norm: float | None = flag(
        None, "scale gradients down to this norm, over all parameters", minimum=0
    )
    skip_zero_grads: bool = flag(
        False,
        "leave parameters alone whose gradients are all zero: no weight decay, no momentum",
    )
    precision: Precision = flag(
        "fp32", "of forward and backward: bf16 by autocast, fp16 with a gradient scaler too"
    )


@dataclass(frozen=True, kw_only=True)
class DDPOptions(Settings):
    """What DistributedDataParallel is told."""

    bucket_cap_mb: float = flag(25.0, "MiB of gradients that travel at a time", minimum=0.001)
    find_unused_parameters: bool = flag(
        False, "look in each step for parameters that the loss does not depend on"
    )
    static_graph: bool = flag(
        False, "promise that every step uses the same parameters in the same way"
    )
    gradient_as_bucket_view: bool = flag(
        True, "let gradients live in the buckets they travel in, which saves a copy of them"
    )
    broadcast_buffers: bool = flag(
        True, "give all ranks rank 0's buffers, such as running means, before each step"
    )
    sync_batch_norm: bool = flag(
        False, "let batch norm layers see the batches of all ranks as one (GPUs only)"
    )
    gradient_compression: Compression = flag("none", "of gradients on their way between ranks")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.static_graph and self.find_unused_parameters:
            raise ConfigurationError(
                "--static-graph finds unused parameters by itself: leave --find-unused-parameters "
                "out"
            )


@dataclass(frozen=True, kw_only=True)
class HardwareOptions(Settings):
    """What computes, and how."""

    device_ids: tuple[int, ...] | None = flag(
        None, "the GPU of each local rank, as torch counts them; default: 0, 1, 2, ..."
    )
    deterministic: bool = flag(
        False, "use only algorithms that give the same bits each time; some are slower"
    )
    compile: Literal["no", "inductor", "aot_eager", "eager"] = flag(
        "no", "backend of torch.compile: inductor for speed, the others to look for faults"
    )


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(Settings):
    """How samples come from where they are read."""

    workers: int = flag(
        0,
        "processes of each rank that load samples ahead of the training; 0: the training loads "
        "each batch itself, when it is due",
        minimum=0,
    )
    prefetch_batches: int = flag(
        _PREFETCH_BATCHES, "batches that each of --workers keeps ready", minimum=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers == 0 and self.prefetch_batches != _PREFETCH_BATCHES:
            raise ConfigurationError("--prefetch-batches is for --workers: set that to 1 or more")
