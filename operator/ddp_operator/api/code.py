"""Code that a client sends with a job: its ID, and the ConfigMaps with the parts of its archive.

The template has a volume for the parts. The job's annotation `code` names the code, so that a
client can replace the code of a running job, although its template is immutable.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

from ddp_protocol.code_archive import MAX_PARTS

from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.values.limits import linear

PARTS_VOLUME: Final = "ddp-code-parts"
"""Volume of a template with the parts; its sources are replaced by those of newer code."""
_FORM: Final = linear(r"([0-9a-f]{12}-[0-9a-f]{4})/([1-9][0-9]?)")


class Code(NamedTuple):
    """Code by its name."""

    id: str
    """The archive's digest, and a suffix that makes the names of ConfigMaps unique to one
    submission."""
    parts: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read the annotation's form, such as `3f2a9c1b5d6e-a1b2/1`; None: the text has another."""
        match = _FORM.fullmatch(text)
        parts = int(match[2]) if match else 0
        return cls(match[1], parts) if match and parts <= MAX_PARTS else None

    def __str__(self) -> str:
        """Return the annotation's form."""
        return f"{self.id}/{self.parts}"

    def config_maps(self, job: str) -> Sequence[str]:
        """Return the names of the ConfigMaps with the parts, in order."""
        return [f"{job}-code-{self.id}-{number}" for number in range(self.parts)]

    def volume(self, job: str) -> dict[str, Any]:
        """Return the volume with the parts."""
        sources = [{"configMap": {"name": name}} for name in self.config_maps(job)]
        return {"name": PARTS_VOLUME, "projected": {"sources": sources}}


def is_other(known: str, reported: str) -> bool:
    """Return whether a launcher reports the ID of other code than that on record.

    `known`: as the annotation names it. Either is empty if it is unknown.
    """
    code = Code.parse(known)
    return code is not None and reported not in ("", code.id)


def takes_code(spec: DDPJobSpec) -> bool:
    """Return whether the job's pods have the volume for a code's parts."""
    volumes = (spec.template.get("spec") or {}).get("volumes") or ()
    return any(volume.get("name") == PARTS_VOLUME for volume in volumes)
