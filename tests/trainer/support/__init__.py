"""Pods as processes, and what they run: for the tests of all folders beside."""
