"""Checks of replicas, gradients and losses."""
