"""Gradients made smaller for their way between ranks, as communication hooks of DDP.

PowerSGD remembers what it left out of one step's gradients and adds it to the next step's. That
memory is part of the run's state. It differs from rank to rank, but only its mean over the ranks
counts: compression and the next memory are linear in it. So before a save every rank takes the
mean, and rank 0's checkpoint holds all. What a rank that died had left out is lost with it; a
survivor's memory takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future

from ddp_trainer.settings.training import DDPOptions

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

Hook = Callable[[Any, "GradBucket"], Future[Tensor]]

# It reports each buffer that it makes.
logging.getLogger(powerSGD_hook.__name__).setLevel(logging.WARNING)


def stateless_hook(options: DDPOptions) -> Hook | None:
    """The hook of a compression that remembers nothing; None: none, or powersgd."""
    hooks: dict[str, Hook] = {
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
    }
    return hooks.get(options.gradient_compression)


@dataclass(frozen=True)
class Memory:
    """PowerSGD's state at a boundary between steps."""

    steps: int
    generator: Any
    left_out: dict[int, Tensor]
    rows: dict[int, Tensor]
    columns: dict[int, Tensor]


class PowerSGD:
    """The hook and its memory, which outlives the groups that it serves.

    The hook begins its second and third collectives in gloo's threads. Were two buckets under way
    at once, ranks could begin them in different orders: on a CPU each has to wait for the last.
    """

    def __init__(
        self,
        *,
        rank: int = DDPOptions.powersgd_rank,
        start_step: int = DDPOptions.powersgd_start_step,
    ) -> None:
        """`rank`: of the matrices that it makes of gradients. `start_step`: steps before that."""
        self._state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=rank, start_powerSGD_iter=start_step
        )
        self.is_rehearsing = False
        """Whether passes average without compressing, and nothing of them is remembered."""

    @classmethod
    def from_options(cls, options: DDPOptions) -> PowerSGD | None:
        """None where another compression was chosen, or none."""
        if options.gradient_compression != "powersgd":
            return None
        return cls(rank=options.powersgd_rank, start_step=options.powersgd_start_step)

    def hook(self, _: object, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket over the ranks."""
        if self.is_rehearsing:
            return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]
        gradients = bucket.buffer()
        known = self._state.error_dict.get(bucket.index())
        if known is not None and known.numel() != gradients.numel():
            self._forget()  # the buckets are others than those of the run that saved this
        for memory in (
            self._state.error_dict,
            self._state.p_memory_dict,
            self._state.q_memory_dict,
        ):
            if bucket.index() in memory:
                memory[bucket.index()] = memory[bucket.index()].to(gradients.device)
        return powerSGD_hook.powerSGD_hook(self._state, bucket)

    def left_out(self) -> list[Tensor]:
        """What this rank's gradients were not averaged with yet, by bucket; as many on all ranks.

        Whoever changes these tensors changes what is remembered.
        """
        return [self._state.error_dict[index] for index in sorted(self._state.error_dict)]

    def memory(self) -> Memory:
        """What it remembers now; later steps do not change it."""
        state = self._state
        # torch puts new tensors in the place of what was left out, but writes into the others.
        return Memory(
            steps=state.iter,
            generator=state.rng.get_state(),
            left_out=dict(state.error_dict),
            rows={index: tensor.clone() for index, tensor in state.p_memory_dict.items()},
            columns={index: tensor.clone() for index, tensor in state.q_memory_dict.items()},
        )

    def restore(self, memory: Memory) -> None:
        """Remember what `memory` returned, and nothing else."""
        self._state.iter = memory.steps
        self._state.rng.set_state(memory.generator)
        self._state.error_dict = memory.left_out
        self._state.p_memory_dict = memory.rows
        self._state.q_memory_dict = memory.columns

    def state_dict(self) -> dict[str, Any]:
        """All of it, of types that `torch.load(weights_only=True)` takes."""
        _, keys, position, *_ = self._state.rng.get_state()
        return {
            "steps": self._state.iter,
            "generator": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            "generator_position": int(position),
            "left_out": dict(self._state.error_dict),
            "rows": dict(self._state.p_memory_dict),
            "columns": dict(self._state.q_memory_dict),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        keys = state["generator"].numpy().astype(np.uint32)
        generator = ("MT19937", keys, state["generator_position"])
        names = ("left_out", "rows", "columns")
        tensors = {name: {i: t.clone() for i, t in state[name].items()} for name in names}
        self.restore(Memory(steps=state["steps"], generator=generator, **tensors))

    def _forget(self) -> None:
        for tensors in self._tensors():
            tensors.clear()

    def _tensors(self) -> Sequence[dict[int, Tensor]]:
        state = self._state
        return state.error_dict, state.p_memory_dict, state.q_memory_dict
