"""`kubectl ddp`: show jobs and change them.

A command reads from the cluster (`client`), prints text that `views` makes, and applies changes.
"""
