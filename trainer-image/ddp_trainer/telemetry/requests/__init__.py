"""Requests from outside to ranks while they train: checkpoints, profiles and stacks."""
