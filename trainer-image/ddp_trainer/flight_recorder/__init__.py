"""Reduces the dumps of torch's flight recorder to what names the rank that a hanging job waits for.

It needs only the standard library and runs where the dumps are: in a pod, or beside `kubectl ddp`.
"""
