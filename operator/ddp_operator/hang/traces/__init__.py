"""Names the rank that a hanging job waits for, from what its ranks' flight recorders show."""

from ddp_operator.hang.traces.analysis import analyse
from ddp_operator.hang.traces.effort import TooMuchEffortError
from ddp_operator.hang.traces.findings import Finding, TraceAnalysis
from ddp_operator.hang.traces.records import Dump, Trace, dump_of
from ddp_operator.hang.traces.words import headline

__all__ = [
    "Dump",
    "Finding",
    "TooMuchEffortError",
    "Trace",
    "TraceAnalysis",
    "analyse",
    "dump_of",
    "headline",
]
