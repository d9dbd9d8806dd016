"""Models of `DDPJob.spec`: what a user asks for."""

from ddp_operator.api.spec.base import MAX_SECONDS
from ddp_operator.api.spec.checkpoint import Checkpoint
from ddp_operator.api.spec.restart import FailureClass, RestartRule
from ddp_operator.api.spec.spec import POD_FIELDS, DDPJobSpec, Override

__all__ = [
    "MAX_SECONDS",
    "POD_FIELDS",
    "Checkpoint",
    "DDPJobSpec",
    "FailureClass",
    "Override",
    "RestartRule",
]
