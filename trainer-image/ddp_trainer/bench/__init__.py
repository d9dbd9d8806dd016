"""Measures the network between ranks, to find a slow one before a training wastes GPU hours."""
