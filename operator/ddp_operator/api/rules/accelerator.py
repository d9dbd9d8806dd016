"""What may be asked of accelerators."""

from ddp_operator.api.constants import GKE_ACCELERATOR_LABEL
from ddp_operator.api.rules.rule import Rule

ACCELERATOR_RULES = (
    Rule(
        f"spec.accelerator.nodeSelector: leave out {GKE_ACCELERATOR_LABEL}; "
        "spec.accelerator.type sets it",
        "!has(self.accelerator) || !has(self.accelerator.nodeSelector)"
        f" || !('{GKE_ACCELERATOR_LABEL}' in self.accelerator.nodeSelector)",
        lambda spec: (
            spec.accelerator is None or GKE_ACCELERATOR_LABEL not in spec.accelerator.node_selector
        ),
    ),
)
