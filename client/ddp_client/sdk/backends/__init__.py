"""The backends that jobs run on: a cluster, or this machine."""
