"""Slow preparations of a test cluster: they run once, before anything starts."""
