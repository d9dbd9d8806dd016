"""Compares the ranks after the first step of each group, before it can be saved.

If steps are taken alike, all ranks have the same weights and read the same data. Ranks that differ
after their very first step do so because of the script. Later, one of them may have a fault.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.optim import Optimizer

from ddp_trainer.collectives.group import Group
from ddp_trainer.data.loading import Loading
from ddp_trainer.data.stream import Stream
from ddp_trainer.exit_codes import ConfigurationError, DifferingReplicasError
from ddp_trainer.library.checks.ownership import trained_by_name
from ddp_trainer.library.formation import Formation
from ddp_trainer.run.fingerprint import sum_of_bits
from ddp_trainer.run.parts import stepped
from ddp_trainer.run.train_state import TrainState

_logger = logging.getLogger(__name__)


class FirstStep:
    """The comparison that is due after the next step."""

    def __init__(self) -> None:
        self.is_due = True
        """True: the group, or the data, is a new one."""
        self._has_passed = False
        self._samples: tuple[Loading, int] | None = None
        self._before: list[tuple[bool, int]] | None = None
        """For each optimizer, whether its rates were above 0, and the bits of its parameters."""

    def begin(self, run: TrainState, formation: Formation) -> None:
        """Note the weights right before optimizers step, until they were seen to change some."""
        # A scaler may skip the first steps, and parts of sharded models differ between ranks.
        is_known = self._has_passed or self._before is not None
        if self.is_due and not is_known and run.parts.scaler is None and not formation.snapshots:
            self._before = [
                (_has_rate(each), sum_of_bits(stepped(each))) for each in run.optimizers
            ]

    def check(
        self, run: TrainState, formation: Formation, loading: Loading | Stream | None
    ) -> None:
        """Compare the ranks, if the step was the first; a collective.

        Raises:
            ConfigurationError: the ranks differ, and no process has taken a step before.
            DifferingReplicasError: they differ, although some had been equal.
        """
        if not self.is_due:
            return
        self.is_due = False
        self._warn_if_unchanged(run.optimizers)
        group = formation.group
        data, samples = self._data(loading)
        named = trained_by_name(run.parts) if not formation.snapshots else {}
        (least, most), (first, last), (_, have_passed), *of_samples = group.bounds(
            sum_of_bits(named.values()), data, self._has_passed, *samples
        )
        what = remedy = ""
        if first != last:
            what = "the ranks have different training sets, or samplers that yield different ones"
            remedy = (
                "job.batches() divides the data, so give it all of them on all ranks, split after "
                "torch.manual_seed() with one number, and a sampler num_replicas=1 and rank=0"
            )
        elif least != most:
            what = f"after their first step, ranks differ in {_first_difference(group, named)}"
            remedy = (
                "call backward() once after each call of the model, and change weights in the same "
                "way on all ranks"
            )
        if what and have_passed:
            raise DifferingReplicasError(f"{what}; restarting from the newest checkpoint")
        if what:
            raise ConfigurationError(f"{what}: {remedy}")
        if group.rank == 0 and any(low != high for low, high in of_samples):
            _logger.warning(
                "the first batch of all ranks differs between them: if the script divides the "
                "data, give all of them to job.batches(), which does that; if samples differ each "
                "time that they are read, all is well"
            )
        self._has_passed = True
        formation.exchange.agree_on_buffers()

    def _data(self, loading: Loading | Stream | None) -> tuple[int, list[int]]:
        """Return what must be equal on all ranks, and what should be; samples are read once."""
        if not isinstance(loading, Loading):
            return 0, []
        if self._samples is None or self._samples[0] is not loading:
            self._samples = loading, loading.fingerprint_of_batch()
        return loading.fingerprint, [self._samples[1]]

    def _warn_if_unchanged(self, optimizers: Sequence[Optimizer]) -> None:
        before, self._before = self._before, None
        for optimizer, (had_rate, bits) in zip(optimizers, before or [], strict=bool(before)):
            # A warm-up may begin at 0, which a scheduler sets before the step or with it. Whether
            # all changes were rounded away is not known here.
            can_change = had_rate and _has_rate(optimizer)
            if can_change and bits == sum_of_bits(stepped(optimizer)):
                _logger.warning(
                    "the first step of the %s has changed no parameter, not even a bit: does the "
                    "loss depend on its parameters?",
                    type(optimizer).__name__,
                )


def _has_rate(optimizer: Optimizer) -> bool:
    return any(float(group.get("lr", 1)) > 0 for group in optimizer.param_groups)


def _first_difference(group: Group, named: Mapping[str, Tensor]) -> str:
    own = {name: sum_of_bits([each]) for name, each in named.items()}
    told = [json.loads(each) for each in group.gather(json.dumps(own).encode())]
    differing = (name for name in own if len({each.get(name) for each in told}) > 1)
    return next(differing, "which parameters they train")
