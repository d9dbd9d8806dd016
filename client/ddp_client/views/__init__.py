"""Turn a job, its pods and the time into text.

Pure functions. The text is safe to print on a terminal, even when a cluster holds hostile strings.
"""
