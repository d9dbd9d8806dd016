"""Requests of launchers about snapshots."""
