"""Flags of optimization, DDP, hardware and data loading; a class for each.

Nothing here imports torch, so a wrong flag is reported at once.
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
    """Learning rate, gradients and precision."""

    lr: float = flag(3e-3, "peak learning rate", minimum=0)
    schedule: Literal["cosine", "constant"] = flag(
        "cosine", "course of the learning rate after the warm-up"
    )
    warmup_steps: int = flag(
        0, "optimizer steps in which the learning rate rises to its peak", minimum=0
    )
    min_lr_ratio: float = flag(
        0.0, "final learning rate of the cosine, as a fraction of the peak", minimum=0, maximum=1
    )
    accumulate_steps: int = flag(
        1,
        "batches per optimizer step; the ranks average their gradients after the last one",
        minimum=1,
    )
    logical_shards: int = flag(
        0,
        "split each step into this many shards and sum their gradients in a fixed order: results "
        "are bit-identical for any number of ranks; 0: one shard per rank, in no fixed order",
        minimum=0,
    )
    clip_grad_norm: float | None = flag(
        None, "clip the norm of the gradients, over all parameters, to this value", minimum=0
    )
    skip_zero_grads: bool = flag(
        False,
        "skip parameters that have only zero gradients: no weight decay, no momentum",
    )
    precision: Precision = flag(
        "fp32",
        "precision of forward and backward: bf16 uses autocast, fp16 also a gradient scaler",
    )


@dataclass(frozen=True, kw_only=True)
class DDPOptions(Settings):
    """Arguments of DistributedDataParallel."""

    bucket_cap_mb: float = flag(25.0, "size of a gradient bucket in MiB", minimum=0.001)
    find_unused_parameters: bool = flag(
        False, "look in each step for parameters that the loss does not depend on"
    )
    static_graph: bool = flag(
        False, "promise that every step uses the same parameters in the same way"
    )
    gradient_as_bucket_view: bool = flag(
        True, "keep gradients in the communication buckets, which saves one copy of them"
    )
    broadcast_buffers: bool = flag(
        True, "broadcast rank 0's buffers, such as running means, to all ranks before each step"
    )
    sync_batch_norm: bool = flag(
        False, "compute batch norm over the batches of all ranks (GPUs only)"
    )
    gradient_compression: Compression = flag(
        "none", "compression of gradients when ranks exchange them"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.static_graph and self.find_unused_parameters:
            raise ConfigurationError(
                "--static-graph finds unused parameters by itself: remove --find-unused-parameters"
            )


@dataclass(frozen=True, kw_only=True)
class HardwareOptions(Settings):
    """GPUs, determinism and torch.compile."""

    device_ids: tuple[int, ...] | None = flag(
        None, "the GPU of each local rank, as torch counts them; default: 0, 1, 2, ..."
    )
    deterministic: bool = flag(False, "use only deterministic algorithms; some are slower")
    compile: Literal["no", "inductor", "aot_eager", "eager"] = flag(
        "no", "backend of torch.compile: inductor for speed, the others for debugging"
    )


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(Settings):
    """Worker processes that load samples."""

    workers: int = flag(
        0,
        "processes per rank that load samples ahead of time; 0: the rank loads each batch itself, "
        "when it needs it",
        minimum=0,
    )
    prefetch_batches: int = flag(
        _PREFETCH_BATCHES, "batches that each worker of --workers keeps ready", minimum=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers == 0 and self.prefetch_batches != _PREFETCH_BATCHES:
            raise ConfigurationError(
                "--prefetch-batches needs --workers: set --workers to 1 or more, or remove it"
            )
