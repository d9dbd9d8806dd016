"""What the operator answers over HTTP: probes on one port, metrics on another, so that a network
policy, or a review of who asks, can tell them apart.
"""

from ddp_operator.endpoints.health import HealthEndpoint
from ddp_operator.endpoints.listening import ListenError
from ddp_operator.endpoints.metrics import MetricsEndpoint

__all__ = ["HealthEndpoint", "ListenError", "MetricsEndpoint"]
