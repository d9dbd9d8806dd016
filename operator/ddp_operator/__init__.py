"""Kubernetes operator for PyTorch DistributedDataParallel jobs."""

__version__ = "0.1.0"
