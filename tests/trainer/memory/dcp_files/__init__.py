"""Tests of checkpoints that unchanged scripts save with DCP."""
