"""GPUs by short names, such as `h100:8`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from ddp_operator.api.gpus import GPUS

from ddp_client.submit.validation import JobRequestError

_FULL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VENDOR: Final = "nvidia-"


def _short_names() -> dict[str, str]:
    """Return types by their names without vendor and, if that is unique, without memory size."""
    bare = {name.removeprefix(_VENDOR).removeprefix("tesla-"): name for name in GPUS}
    return {re.sub(r"-\d+gb$", "", short): name for short, name in bare.items()} | bare


SHORT_NAMES: Final[Mapping[str, str]] = _short_names()
"""GKE's accelerator types by short names such as `h100` and `a100-80gb`."""


@dataclass(frozen=True)
class GpuRequest:
    """The GPUs of each pod."""

    type: str
    """GKE's accelerator type."""
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `TYPE` or `TYPE:COUNT`; a full type name may be missing from our table.

        Raises:
            JobRequestError: it has another form.
        """
        called, colon, number = text.strip().lower().partition(":")
        count = int(number) if number.isdecimal() and len(number) <= 3 else 0
        if colon and not count:
            raise JobRequestError(
                f"GPUs {text[:80]!r}: use TYPE:COUNT, such as h100:8 for 8 GPUs in each pod"
            )
        if called in SHORT_NAMES:
            return cls(SHORT_NAMES[called], count or 1)
        if called.startswith(_VENDOR) and _FULL.fullmatch(called):
            return cls(called, count or 1)
        known = ", ".join(sorted(SHORT_NAMES))
        raise JobRequestError(
            f"GPUs {text[:80]!r}: unknown type, use one of {known}, or a GKE type that begins "
            f"with {_VENDOR}"
        )
