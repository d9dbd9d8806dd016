"""Runs one job on this machine without a cluster: `machine` runs its pods, `run` is the command."""
