"""Rules that concern more than one field. Each exists twice: in CEL for the API server, and in
Python for the operator.

The API server evaluates CEL whenever a job or its status is written. The operator evaluates Python
for jobs that are older than a rule, and for overrides, because CEL cannot merge a patch. `ddp run`,
`local` and `convert` evaluate Python where there is no server.

One text for both would need a CEL interpreter in the image of the operator, which has rights in a
cluster and reads specs of strangers. The official interpreter is 52 MB. The small one depends on
command-line packages, lacks Kubernetes' string functions and checks no types. So it would need the
same test against a real server as the two copies: `tests/integration/test_crd_rules.py` checks that
both forms agree on all good, bad and generated manifests.
"""

from ddp_operator.api.rules.contradictions import warnings
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
    "warnings",
]
