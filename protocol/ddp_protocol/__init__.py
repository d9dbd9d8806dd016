"""Messages between the operator and the launchers in pods, and what else both sides share.

The launcher is injected into any image, so nothing here imports more than the standard library.
"""
