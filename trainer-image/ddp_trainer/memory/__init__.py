"""Keeps snapshots of ranks in the memory of their pods."""
