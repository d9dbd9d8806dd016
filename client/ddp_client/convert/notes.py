"""The notes of a conversion."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ddp_operator.api.spec import DDPJobSpec

_FIELDS: Final = {field.alias for field in DDPJobSpec.model_fields.values()}


class ConversionError(ValueError):
    """The source cannot become a DDPJob; the text names the field and the remedy."""


@dataclass(frozen=True)
class Note:
    """A field that changed its meaning or was dropped."""

    field: str
    """Path in the source, such as `spec.runPolicy.backoffLimit`."""
    text: str
    """The change, and the remedy."""
    carried: bool
    """True: the field is in the result with another meaning; False: it was dropped."""

    def __str__(self) -> str:
        return f"{'changed' if self.carried else 'not carried over'}: {self.field}: {self.text}"


class Notes:
    """The notes of one conversion, in order, without duplicates."""

    def __init__(self) -> None:
        self._notes: dict[Note, None] = {}

    def changed(self, field: str, text: str) -> None:
        """Note that a field has another meaning now."""
        self._notes[Note(field, text, carried=True)] = None

    def dropped(self, field: str, text: str) -> None:
        """Note that a field was dropped."""
        self._notes[Note(field, text, carried=False)] = None

    def rest(self, fields: Iterable[str], hints: Mapping[str, str]) -> None:
        """Note the fields that were not read as dropped; hints say what to do instead."""
        for field in fields:
            # For spec.a.b[0].c look up a hint for c, then for b, and so on.
            names = [part.partition("[")[0] for part in reversed(field.split("."))]
            advice = (hints[name] for name in names if name in hints)
            default = (
                f"set spec.{names[0]} of the DDPJob if you need it"
                if names[0] in _FIELDS
                else "a DDPJob has no such field; check whether the training needs it"
            )
            self.dropped(field, next(advice, default))

    def all(self) -> tuple[Note, ...]:
        """Return the notes."""
        return tuple(self._notes)
