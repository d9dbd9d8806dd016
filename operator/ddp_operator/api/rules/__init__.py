"""Rules that concern more than one field, each written twice: in CEL for the API server, in Python
for the operator.

The API server evaluates CEL rules at `kubectl apply` from Kubernetes 1.25 on. Older servers drop
them silently, so the operator checks the same rules before it acts on a job. A test runs both
forms of every rule over the same specs.
"""

from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.rules.spec import NAME_CEL, SPEC_RULES, TRANSITION_RULES, violations
from ddp_operator.api.rules.trainer import (
    gpu_limit,
    is_gpu,
    trainer_container,
    wants_host_network,
)

__all__ = [
    "NAME_CEL",
    "SPEC_RULES",
    "TRANSITION_RULES",
    "Rule",
    "gpu_limit",
    "is_gpu",
    "trainer_container",
    "violations",
    "wants_host_network",
]
