"""What a cluster needs on this machine and takes long to get: done once, before anything starts."""
