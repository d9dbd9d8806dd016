"""What a rule is."""

from collections.abc import Callable
from dataclasses import dataclass

from ddp_operator.api.spec import DDPJobSpec


@dataclass(frozen=True)
class Rule:
    """One rule on `spec`: `holds` and `cel` say the same, `message` names the field and the
    remedy.
    """

    message: str
    cel: str
    holds: Callable[[DDPJobSpec], bool]
    names: Callable[[DDPJobSpec], str] = lambda _: ""
    """What exactly breaks it, where the operator can say so; CEL's messages are fixed."""
    cel_sees_all: bool = True
    """False: what CEL refuses the operator refuses, too, but it refuses more."""
    on: str = ""
    """The field of `spec` that `self` is in CEL; empty: `spec` itself.

    The API server evaluates each rule at each write, also of a status, and every access to a field
    copies the schemas of all fields beside it. A rule on a field costs nothing while the field is
    absent, and little else. The default of that field has to obey it as written, without the
    defaults of the fields in it: the server checks this when it gets the CRD.
    """
