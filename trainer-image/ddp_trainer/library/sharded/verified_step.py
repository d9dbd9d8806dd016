"""The newest step with verified snapshots: ranks return to it when they find flipped bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ddp_trainer.run.train_state import TrainState

if TYPE_CHECKING:
    from ddp_trainer.library.sharded.snapshots import Snapshots


class VerifiedStep:
    """The step with snapshots that stay until all ranks have those of a newer verified one."""

    def __init__(self, *, is_required: bool) -> None:
        """`is_required`: no other steps may be saved."""
        self._is_required = is_required
        self.number: int | None = None
        """All ranks have their snapshots and copies of this step; None: there is no such step."""
        self._next: int | None = None
        """A newer step that was verified, and may not have been copied yet."""

    def note(self, step: int) -> None:
        """Note that all ranks have verified their states after a step."""
        self._next = step

    def complete(self, step: int) -> None:
        """Note that all ranks have their snapshots and copies of a step."""
        if self._next == step:
            self.number, self._next = step, None

    @property
    def is_due(self) -> bool:
        """Return whether a newer step will replace it."""
        return self._next is not None

    def begin_at(self, step: int) -> None:
        """Note that all ranks continue from a step: later ones do not exist any more."""
        if self.number is not None and self.number > step:
            self.number = None
        if self._next != step:
            self._next = None

    def forget(self) -> None:
        """Release the snapshots: the script cannot return to the step."""
        self.number = self._next = None

    @property
    def kept(self) -> set[int]:
        """Return the steps with snapshots that must stay."""
        return {step for step in (self.number, self._next) if step is not None}

    def may_be_saved(self, step: int) -> bool:
        """Return whether a step may be saved in the memory of the pods."""
        return step in self.kept or not self._is_required

    def replaceable(self, steps: Iterable[int]) -> list[int]:
        """Return the steps that can give their memory to a newer one: older and not verified."""
        return [step for step in sorted(steps)[:-1] if step not in self.kept]


class KeptSnapshots:
    """The snapshots of the verified step, as a state to which this rank can return."""

    is_cheap = True  # the snapshots of this step are taken in any case

    def __init__(self, run: TrainState, snapshots: Snapshots) -> None:
        self._run = run
        self._snapshots = snapshots
        self._verified = snapshots.verified

    @property
    def step(self) -> int | None:
        """Return the verified step; None: there is none."""
        return self._verified.number

    @property
    def is_due(self) -> bool:
        """Return whether a newer step will replace it."""
        return self._verified.is_due

    @property
    def is_present(self) -> bool:
        """Return whether the ranks of a new group continue from it."""
        return self.step == self._run.position.step

    def note(self) -> None:
        """Note that the present step is verified."""
        self._verified.note(self._run.position.step)

    def take(self) -> None:
        """Note the present state; its snapshot was taken after the step."""
        self._snapshots.at_rest.note()

    def forget(self) -> None:
        """Forget the step, because the script cannot return to it."""
        self._verified.forget()

    def load(self) -> None:
        """Forget all later steps, so that the ranks of the next group continue from this one."""
        self._snapshots.return_to_verified()
