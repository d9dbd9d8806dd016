"""The brain: pure functions from (job, its pods, now) to a plan. No I/O, no clock, no
randomness.
"""
