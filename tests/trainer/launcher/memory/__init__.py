"""Snapshots in memory that launchers keep."""
