"""Starts, watches and stops the processes of a pod's ranks."""
