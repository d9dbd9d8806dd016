"""The trainer on a GPU, with NCCL: `make test-gpu`. One GPU is enough.

NCCL takes two ranks on one GPU for a mistake, unless it believes that they are on two nodes
(NCCL_HOSTID). Then they meet over the network, as those of two nodes do. So each rank here is a pod
of its own.
"""
