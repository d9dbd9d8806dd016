"""Sums of numbers of all ranks, outside of the loop over batches.

A rank that replaces a lost one runs the script from its top. It receives the answers that the
others had at the same places, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.library.checks.calls import Call, check_call
from ddp_trainer.library.session import Session
from ddp_trainer.run.position import BEFORE_TRAINING, Asked, after_step, before_epoch


class Answers:
    """The answers that the script has received."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.epoch = 0
        """The script's epoch; during its evaluation other ranks may already be in the next one."""
        self.received: Counter[Asked] = Counter()
        """Number of answers that the script has received since the last step, by place."""
        self._is_asking = False

    def sum(
        self, call: Call, *values: float | Callable[[], float], data: int = 0
    ) -> tuple[list[float], bool]:
        """Return the sum, and whether it is new: not if other ranks had it before this one joined.

        `call`: the method that needs it. Values that may differ in another group are passed as
        functions. `data`: fingerprint of the data that the ranks share.

        Raises:
            ConfigurationError: other ranks called another method, or have other data.
        """
        session = self._session
        answers = session.run.answers
        place, is_new = self._place(), False
        self._is_asking = True
        while self.received[place] == len(answers.setdefault(place, [])):
            try:
                check_call(call, len(values), data, session.formation.group)
                answer = session.formation.group.sum(*map(_value, values))
            except ConfigurationError:
                raise
            except Exception as error:
                session.form(error)  # also brings the answer, if another rank has it
                answers = session.run.answers
            else:
                answers[place].append(answer)
                is_new = True
        self._is_asking = False
        self.received[place] += 1
        return answers[place][self.received[place] - 1], is_new

    def _place(self) -> Asked:
        """Return the place of the script; the same on all ranks at that place."""
        kind, _ = self._session.script.place
        if kind == "start":
            return BEFORE_TRAINING
        if kind == "epoch":
            return before_epoch(self.epoch)
        return after_step(self._session.run.position.step, epoch=self.epoch)

    @property
    def are_complete(self) -> bool:
        """Return whether the others have no more answers at this place than this rank."""
        place = self._place()
        return self.received[place] == len(self._session.run.answers.get(place, []))

    def number_after(self, step: int) -> int:
        """Return how many answers the script has asked for after a step."""
        return self.received[after_step(step, epoch=self.epoch)] + self._is_asking


def _value(given: float | Callable[[], float]) -> float:
    return float(given() if callable(given) else given)
