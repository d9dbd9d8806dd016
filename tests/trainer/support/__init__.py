"""Pods as processes, and the programs that they run, for all tests of the trainer."""
