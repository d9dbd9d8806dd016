"""The command `python -m ddp_operator local`: one job, from its manifest to its end, on this
machine.

It stands where `process` stands for a real cluster: it tells the engine of jobs and pods, and
people of what the engine does.
"""
