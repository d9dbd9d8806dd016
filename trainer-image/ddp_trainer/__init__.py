"""The training side of a DDPJob: what runs inside the pods.

It reads nothing but its environment, its flags and the checkpoint directory, and talks to nobody
but its fellow ranks: it has no idea that Kubernetes exists.
"""
