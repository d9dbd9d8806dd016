"""The operator's HTTP endpoints: probes on one port, metrics on another, so that a NetworkPolicy or
an access review can treat them differently.
"""

from ddp_operator.endpoints.health import HealthEndpoint
from ddp_operator.endpoints.listening import ListenError
from ddp_operator.endpoints.metrics import MetricsEndpoint

__all__ = ["HealthEndpoint", "ListenError", "MetricsEndpoint"]
