"""Metrics for Prometheus: of the operator itself, and of each job."""

from ddp_operator.engine.metrics.exposition import CONTENT_TYPE
from ddp_operator.engine.metrics.jobs import JOBS, Chosen, choose, text_of
from ddp_operator.engine.metrics.operator import Metrics

__all__ = ["CONTENT_TYPE", "JOBS", "Chosen", "Metrics", "choose", "text_of"]
