"""Checks of replicas, gradients and losses: they find faults that raise no error."""
