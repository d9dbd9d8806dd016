"""Process groups: any subset of the ranks, the ranks of one node, one rank of each node.

torchrun --nproc-per-node 4 groups.py
torchrun --nproc-per-node 4 groups.py --ranks-per-node 2    # simulates two nodes
"""

import argparse
import os

import torch
import torch.distributed as dist


def check(what: str, actual: object, expected: object) -> None:
    """Exit with an error unless both are equal."""
    if actual != expected:
        raise SystemExit(f"rank {dist.get_rank()}: {what} is {actual}, not {expected}")


def total(value: float, group: dist.ProcessGroup | None = None) -> float:
    """Return the sum of a number over a group; None is the group of all ranks."""
    number = torch.tensor(value)
    dist.all_reduce(number, group=group)
    return number.item()


def even_ranks() -> None:
    """Form a group of the even ranks; within it, ranks count from 0 again."""
    rank = dist.get_rank()
    evens = list(range(0, dist.get_world_size(), 2))
    group = dist.new_group(evens)  # all ranks must call it, even those outside the group
    if rank not in evens:
        check("rank of an outsider in the group", dist.get_rank(group), -1)
        return  # it does not take part in the group's collectives
    check("rank in the group", dist.get_rank(group), rank // 2)
    check("rank in the job", dist.get_global_rank(group, rank // 2), rank)
    check("sum of the even ranks", total(rank, group), sum(evens))
    number = torch.tensor(rank)
    dist.broadcast(number, src=evens[-1], group=group)  # src is a rank of the job, not of the group
    check("message of the last even rank", number.item(), evens[-1])


def nodes(ranks_per_node: int) -> None:
    """Compute a sum in three stages; only one of them uses the network between nodes."""
    rank, ranks = dist.get_rank(), list(range(dist.get_world_size()))
    node, index = divmod(rank, ranks_per_node)
    on_nodes = [ranks[first : first + ranks_per_node] for first in ranks[::ranks_per_node]]
    across = [ranks[first::ranks_per_node] for first in range(ranks_per_node)]
    # All ranks create all groups in the same order; otherwise collectives hang or mix.
    node_group, _ = dist.new_subgroups_by_enumeration(on_nodes)  # type: ignore[no-untyped-call]
    across_group, _ = dist.new_subgroups_by_enumeration(across)  # type: ignore[no-untyped-call]
    check("ranks on my node", dist.get_process_group_ranks(node_group), on_nodes[node])
    check("index on the node", dist.get_rank(node_group), index)
    check("node seen from across", dist.get_rank(across_group), node)

    on_node = total(rank, node_group)
    check("sum over the node", on_node, sum(on_nodes[node]))
    everywhere = torch.tensor(0.0)
    if index == 0:  # one rank of each node represents its node
        everywhere += total(on_node, across_group)
    dist.broadcast(everywhere, src=on_nodes[node][0], group=node_group)
    check("sum over all, in stages", everywhere.item(), total(rank))
    if rank == 0:
        print(f"nodes {on_nodes}, across {across}", flush=True)


def main() -> None:
    """Run both parts on this rank."""
    arguments = argparse.ArgumentParser()
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    arguments.add_argument("--ranks-per-node", type=int, default=local_world_size)
    dist.init_process_group("gloo")
    even_ranks()
    nodes(arguments.parse_args().ranks_per_node)
    dist.destroy_process_group()
    os._exit(0)  # now: gloo's threads could abort or hang the interpreter's shutdown


if __name__ == "__main__":
    main()
