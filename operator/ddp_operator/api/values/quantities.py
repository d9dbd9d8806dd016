"""Kubernetes' resource quantities, such as `16Gi`, as numbers."""

import re
from decimal import Decimal
from typing import Annotated, Final

from pydantic import Field

_FACTORS: Final = {
    "": Decimal(1),
    **{prefix: Decimal(1000) ** power for power, prefix in enumerate("kMGTPE", 1)},
    **{f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", 1)},
    **{prefix: Decimal(1000) ** -power for power, prefix in enumerate("mun", 1)},
}
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:[eE][+-]?[0-9]{1,2})?)"
    r"([numkMGTPE]|[KMGTPE]i|)"
)

Memory = Annotated[
    str, Field(max_length=24, pattern=r"^[0-9]{1,15}([.][0-9]{1,3})?(Ki|Mi|Gi|Ti|k|M|G|T)?$")
]
"""An amount of memory as people write it."""


def quantity(amount: int | str) -> Decimal | None:
    """Return a quantity as a number, such as of bytes; None if it is in no form that people use."""
    found = _QUANTITY.fullmatch(str(amount))
    return Decimal(found[1]) * _FACTORS[found[2]] if found else None
