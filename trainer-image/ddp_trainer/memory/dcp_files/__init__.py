"""Keeps in memory what unchanged scripts save with DCP on a pod's own disk."""
