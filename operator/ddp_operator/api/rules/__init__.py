"""Rules that concern more than one field, each written twice: in CEL for the API server, in Python
for the operator.

The API server evaluates CEL whenever a job or its status is written. The operator evaluates Python
for jobs from before a rule and for overrides, since CEL cannot merge a patch; `ddp run`, `local`
and `convert` do where there is no server.

Why not one text for both: a CEL interpreter would enter the image of the operator, which has rights
in a cluster and reads specs of strangers. The official one is 52 MB. The small one brings the
dependencies of a command line, lacks Kubernetes' string functions, checks no types, and so needs
the same proof against a real server as the copies. `tests/integration/test_crd_rules.py` has that
proof: both forms judge all good and bad manifests, and generated ones, alike.
"""

from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.rules.spec import NAME_CEL, SPEC_RULES, TRANSITION_RULES, violations
from ddp_operator.api.rules.trainer import (
    gpu_limit,
    trainer_container,
    wants_host_network,
)

__all__ = [
    "NAME_CEL",
    "SPEC_RULES",
    "TRANSITION_RULES",
    "Rule",
    "gpu_limit",
    "trainer_container",
    "violations",
    "wants_host_network",
]
