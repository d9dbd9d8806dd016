"""A collective that a script has begun within a step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch import distributed as dist
from torch.futures import Future

from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.script_collective import Collective


class ScriptWork(dist.Work):
    """A collective within a step; it ends with the step if the group breaks."""

    def __init__(
        self,
        work: dist.Work,
        group: Group,
        collective: Collective,
        keep_own: Callable[[], None],
        *,
        excuses: Callable[[Exception], bool],
        when_complete: Callable[[], None],
    ) -> None:
        """`keep_own` gives the rank its own values instead of a result.

        `excuses` returns whether an error means that the group failed, which the step notices.
        `when_complete` is called whenever a wait has ended with a result.
        """
        super().__init__()
        self._work = work
        self._group = group
        self._collective = collective
        self._keep_own = keep_own
        self._excuses = excuses
        self._when_complete = when_complete

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the collective has ended or the group is broken."""
        del timeout
        try:
            self._group.wait(self._work, self._collective.outputs)
        except Exception as error:
            if not self._excuses(error):
                raise
            self._keep_own()
        else:
            self._when_complete()
        return True

    def synchronize(self) -> None:
        """Wait as `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the collective has ended or the group is broken."""
        return self._group.is_broken or self._work.is_completed()

    def result(self) -> list[Tensor]:
        """Return the tensors that it has written."""
        return self._collective.outputs

    def get_future(self) -> Future[Any]:
        """Return a future of its outputs, complete at the latest when the group is broken."""
        return self._group.future_of(self._work, self._collective.outputs)
