"""Checkpoints: saving a run to disk and loading it."""
