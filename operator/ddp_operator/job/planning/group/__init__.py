"""Decide which pods form the group, and send that to their launchers."""
