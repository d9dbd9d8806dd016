"""Reads and checks the settings of a rank, from flags and the environment."""
