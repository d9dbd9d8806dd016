"""Checks a model and its options before its gradients are averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.library.session import Session
from ddp_trainer.library.steps.fixed_batch import check
from ddp_trainer.library.steps.net import Net
from ddp_trainer.run.parts import check_whole
from ddp_trainer.settings.flags import as_arguments
from ddp_trainer.settings.training import COMPRESSIONS, DDPOptions

WRAP_OPTIONS = (
    "broadcast_buffers",
    "bucket_cap_mb",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "gradient_compression",
    "static_graph",
)
"""DDP options that `Job.wrap` accepts."""


def wrapped(session: Session, model: nn.Module, ddp: Mapping[str, Any]) -> Net:
    """Return a wrapper that has joined no group yet; see `Job.wrap`."""
    formation = session.formation
    if isinstance(model, Net) or any(net.module is model for net in formation.exchange.nets):
        raise ConfigurationError("wrap() got a model that is wrapped already: wrap it once")
    if not any(model is known for known in session.run.models):
        raise ConfigurationError(
            "wrap() got a model that join() does not know: name it there, as in "
            "join(model=model, ...), so that it can be saved and restored"
        )
    if formation.snapshots is not None:
        raise ConfigurationError(
            "wrap() got a model that fully_shard() has sharded: call it directly"
        )
    check_whole(model)
    options = _options_of(ddp)
    check(session.batch, model, options)
    return Net(
        model,
        options,
        on_trouble=formation.exchange.note,
        before_waiting=session.timer.lap_before_waiting,
    )


def _options_of(ddp: Mapping[str, Any]) -> DDPOptions:
    """Return the options of `Job.wrap`.

    Raises:
        ConfigurationError: an option is unknown or has an invalid value.
    """
    unknown = set(ddp) - set(WRAP_OPTIONS)
    if unknown:
        raise ConfigurationError(
            f"wrap() takes {', '.join(WRAP_OPTIONS)}, not {', '.join(sorted(unknown))}"
        )
    try:
        options = DDPOptions(**ddp)
    except ConfigurationError as error:
        raise ConfigurationError(f"wrap(): {as_arguments(str(error))}") from error
    if options.gradient_compression not in COMPRESSIONS:
        raise ConfigurationError(
            f"wrap() got gradient_compression={options.gradient_compression!r}: choose from "
            f"{', '.join(COMPRESSIONS)}"
        )
    return options
