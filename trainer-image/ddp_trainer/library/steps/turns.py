"""Refuses to let optimizers take turns where their turns could not be repeated."""

from __future__ import annotations

from collections.abc import Iterable

from torch.optim import Optimizer

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.batch import Batch


def check_turn(
    optimizer: Optimizer,
    optimizers: Iterable[Optimizer],
    *,
    is_sharded: bool,
    batch: Batch,
    accumulate: int,
    skips_steps: bool,
) -> None:
    """Check that one of several optimizers can take its turn.

    `optimizers`: all that `join` knows. `is_sharded`: their models are. `accumulate`: batches of a
    step. `skips_steps`: steps whose loss is not finite are skipped.

    Raises:
        ConfigurationError: it cannot.
    """
    if not any(optimizer is known for known in optimizers):
        raise ConfigurationError(
            "step() got an optimizer that join() does not know: name it there, as in "
            "join(model=model, optimizer=optimizer, ...), so that its state can be saved"
        )
    if is_sharded:
        raise ConfigurationError(
            "step(optimizer=...) takes turns, which sharded models cannot: call job.step() "
            "once for all optimizers"
        )
    if batch.is_fixed:
        raise ConfigurationError(
            f"step(optimizer=...) takes turns with one batch, but {batch.name} may split "
            f"it: {batch.remedy}"
        )
    if accumulate > 1:
        raise ConfigurationError(
            "step(optimizer=...) and batches(accumulate=...) cannot be combined: remove one"
        )
    if skips_steps:
        raise ConfigurationError(
            "step(optimizer=...) and skip_nonfinite_steps cannot be combined: a turn may have "
            "been taken when a loss is not finite; remove skip_nonfinite_steps"
        )
