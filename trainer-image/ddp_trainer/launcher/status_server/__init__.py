"""Serves a pod's status, metrics and requests over HTTP."""
