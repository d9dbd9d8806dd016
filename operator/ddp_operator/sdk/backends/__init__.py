"""The places where jobs live: a cluster, or this machine."""
