"""Reasons of Events, conditions and recorded failures: what each means, what happens next, and what
to do.
"""

from typing import Final

from ddp_client.views.reasons.cluster import OF_CLUSTER
from ddp_client.views.reasons.failures import FAILURES
from ddp_client.views.reasons.reason import Reason
from ddp_client.views.reasons.states import STATES

__all__ = ["OF_CLUSTER", "OWN", "REASONS", "Reason"]

OWN: Final = {**STATES, **FAILURES}
"""Reasons that the operator gives itself."""
REASONS: Final = {**OWN, **OF_CLUSTER}
