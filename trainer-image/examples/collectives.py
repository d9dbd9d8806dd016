"""Runs every collective once and checks it; and a ring all-reduce by hand, in its two phases.

    torchrun --nproc-per-node 3 collectives.py

Rank r contributes numbers derived from r, so every expected result is known.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor


def check(name: str, actual: Tensor, expected: list[float]) -> None:
    """Exit with an error unless the collective gave the expected result."""
    if actual.tolist() != expected:
        raise SystemExit(f"rank {dist.get_rank()}: {name} gave {actual.tolist()}, not {expected}")
    if dist.get_rank() == 0:
        print(f"{name:<12} {expected}", flush=True)


def ring_all_reduce(values: Tensor) -> None:
    """Sum `values` over all ranks, in place; each rank exchanges data only with its neighbours.

    It sends 2(n-1)/n of the data for n ranks, so less than twice the data: that makes a ring fast.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = list(values.tensor_split(n))  # views: changing them changes `values`

    def pass_on(*, send: int, receive: int) -> Tensor:
        sending = dist.P2POp(dist.isend, chunks[send % n], right)
        receiving = dist.P2POp(dist.irecv, incoming := torch.empty_like(chunks[receive % n]), left)
        for work in dist.batch_isend_irecv([sending, receiving]):  # both at once, or all ranks hang
            work.wait()
        return incoming

    for turn in range(n - 1):  # reduce-scatter: partial sums travel around and grow
        chunks[(rank - turn - 1) % n] += pass_on(send=rank - turn, receive=rank - turn - 1)
    for turn in range(n - 1):  # all-gather: the complete chunk of each rank replaces the others
        chunks[(rank - turn) % n].copy_(pass_on(send=rank + 1 - turn, receive=rank - turn))


def main() -> None:
    """Run every collective on this rank."""
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    everyone, mine = [float(r) for r in range(n)], torch.tensor([float(rank)])

    token = torch.zeros(1)  # send and recv: from rank to rank; each adds one
    if rank > 0:
        dist.recv(token, rank - 1)
    if rank < n - 1:
        dist.send(token + 1, rank + 1)
    check("send/recv", token, [rank])
    dist.reduce(total := mine.clone(), dst=0)
    if rank == 0:  # on ranks other than dst, the result is undefined
        check("reduce", total, [sum(everyone)])
    dist.all_reduce(largest := mine.clone(), op=dist.ReduceOp.MAX)
    check("all_reduce", largest, [n - 1])
    tens = [torch.tensor([10 * r]) for r in everyone] if rank == 0 else None
    dist.scatter(part := torch.empty(1), tens, src=0)
    check("scatter", part, [10.0 * rank])
    parts = [torch.empty(1) for _ in range(n)]
    dist.gather(mine, parts if rank == 0 else None, dst=0)
    if rank == 0:
        check("gather", torch.cat(parts), everyone)
    dist.broadcast(told := mine.clone(), src=n - 1)
    check("broadcast", told, [n - 1])
    dist.all_gather(parts, mine)
    check("all_gather", torch.cat(parts), everyone)
    ring_all_reduce(values := torch.arange(10.0) + rank)  # chunks may differ in size
    check("ring", values, [n * i + sum(everyone) for i in range(10)])
    dist.destroy_process_group()
    os._exit(0)  # now: gloo's threads could abort or hang the interpreter's shutdown


if __name__ == "__main__":
    main()
