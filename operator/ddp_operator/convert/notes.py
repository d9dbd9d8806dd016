"""What a conversion has to say besides its result."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ddp_operator.api.spec import DDPJobSpec

_FIELDS: Final = {field.alias for field in DDPJobSpec.model_fields.values()}


class ConversionError(ValueError):
    """Something that no DDPJob can be made of; the text names the field and the remedy."""


@dataclass(frozen=True)
class Note:
    """One thing that is not what it was."""

    field: str
    """Where it stands in the source, such as `spec.runPolicy.backoffLimit`."""
    text: str
    """What became of it, and what to do."""
    carried: bool
    """Whether it is in the result, in another meaning; False: it is not."""

    def __str__(self) -> str:
        return f"{'changed' if self.carried else 'not carried over'}: {self.field}: {self.text}"


class Notes:
    """The notes of one conversion, in the order in which they came up, each once."""

    def __init__(self) -> None:
        self._notes: dict[Note, None] = {}

    def changed(self, field: str, text: str) -> None:
        """Say that something means something else now."""
        self._notes[Note(field, text, carried=True)] = None

    def dropped(self, field: str, text: str) -> None:
        """Say that something is gone."""
        self._notes[Note(field, text, carried=False)] = None

    def rest(self, fields: Iterable[str], hints: Mapping[str, str]) -> None:
        """Say of fields that nobody took that they are gone; hints say what to do instead."""
        for field in fields:
            # By a name of the path: spec.a.b[0].c is told of under c, else under b, and so on.
            names = [part.partition("[")[0] for part in reversed(field.split("."))]
            found = (hints[name] for name in names if name in hints)
            default = (
                f"set spec.{names[0]} of the DDPJob, if it is to hold there"
                if names[0] in _FIELDS
                else "a DDPJob has no such field; see whether the training needs it"
            )
            self.dropped(field, next(found, default))

    def all(self) -> tuple[Note, ...]:
        """Return them."""
        return tuple(self._notes)
