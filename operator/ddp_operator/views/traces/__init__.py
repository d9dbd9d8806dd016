"""Reads the dumps of torch's flight recorder and names the rank that a hanging job waits for."""

from ddp_operator.views.traces.analysis import Finding, Verdict, analyse
from ddp_operator.views.traces.dump import MAX_BYTES, Dump, DumpError, read_dump
from ddp_operator.views.traces.words import as_dict, diagnosis, headline

__all__ = [
    "MAX_BYTES",
    "Dump",
    "DumpError",
    "Finding",
    "Verdict",
    "analyse",
    "as_dict",
    "diagnosis",
    "headline",
    "read_dump",
]
