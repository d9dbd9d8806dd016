"""Keeps, copies and restores the snapshots in memory of this pod's ranks."""
