"""The trainer on a GPU, with NCCL: `make test-gpu`. One GPU is enough.

NCCL refuses two ranks on one GPU, unless NCCL_HOSTID says that they are on two nodes. Then they
connect over the network like ranks of two nodes. So each rank here is a pod.
"""
