"""The command `python -m ddp_client.local`: one job, from its manifest to its end, on this
machine.

It does what `process` does for a real cluster: it reports jobs and pods to the engine, and shows
people what the engine does.
"""
