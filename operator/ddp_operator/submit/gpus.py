"""`h100:8`: GPUs as people call them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from ddp_operator.api.gpus import GPUS
from ddp_operator.submit.words import JobRequestError

_FULL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VENDOR: Final = "nvidia-"


def _short_names() -> dict[str, str]:
    """Types by their names without vendor and, where no other is called so, without memory."""
    bare = {name.removeprefix(_VENDOR).removeprefix("tesla-"): name for name in GPUS}
    return {re.sub(r"-\d+gb$", "", short): name for short, name in bare.items()} | bare


SHORT_NAMES: Final[Mapping[str, str]] = _short_names()
"""GKE's accelerator types by what people call them, such as `h100` and `a100-80gb`."""


@dataclass(frozen=True)
class GpuRequest:
    """What each pod gets."""

    type: str
    """GKE's accelerator type."""
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `TYPE` or `TYPE:COUNT`; a type may be one that is not in our table.

        Raises:
            JobRequestError: it is neither.
        """
        called, colon, number = text.strip().lower().partition(":")
        count = int(number) if number.isdecimal() and len(number) <= 3 else 0
        if colon and not count:
            raise JobRequestError(
                f"GPUs {text[:80]!r}: say it as h100:8, a type and how many a pod gets"
            )
        if called in SHORT_NAMES:
            return cls(SHORT_NAMES[called], count or 1)
        if called.startswith(_VENDOR) and _FULL.fullmatch(called):
            return cls(called, count or 1)
        known = ", ".join(sorted(SHORT_NAMES))
        raise JobRequestError(
            f"GPUs {text[:80]!r}: none of {known}, nor a type of GKE's, which begins with {_VENDOR}"
        )
