"""Passes the lines of a pod's ranks on to its log."""
