"""Keeps a launcher's view of the group: assignments from the operator, and failures of pods."""
