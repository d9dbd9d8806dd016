"""The form of a rule."""

from collections.abc import Callable
from dataclasses import dataclass

from ddp_operator.api.spec import DDPJobSpec


@dataclass(frozen=True)
class Rule:
    """A rule on `spec`. `holds` and `cel` express the same condition. `message` names the field and
    the remedy.
    """

    message: str
    cel: str
    holds: Callable[[DDPJobSpec], bool]
    names: Callable[[DDPJobSpec], str] = lambda _: ""
    """Return what exactly breaks the rule, if the operator can tell. CEL's messages are fixed."""
    cel_sees_all: bool = True
    """False: the operator refuses everything that CEL refuses, and more."""
    on: str = ""
    """Field of `spec` that `self` is in CEL; empty for `spec` itself.

    The API server evaluates each rule at each write, also of a status, and every access to a field
    copies the schemas of all fields next to it. A rule on a field costs nothing while the field is
    absent, and little otherwise. The field's own default must obey the rule as written, without the
    defaults of its inner fields: the server checks this when it stores the CRD."""
