"""Snapshots in memory, as the launchers keep them."""
