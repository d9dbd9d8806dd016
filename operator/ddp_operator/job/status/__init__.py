"""Derive a job's status: conditions and phase, progress, goodput."""
