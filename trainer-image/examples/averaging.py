"""Gradients averaged in three ways: by hand, by hooks during backward, and by DDP itself.

    torchrun --nproc-per-node 2 averaging.py

All three train the same model on the same shares of the data and end with the same parameters.
"""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def new_model() -> nn.Module:
    """Return a model; all ranks get the same weights, since they use the same seed."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def train(model: nn.Module, after_backward: Callable[[], object] = lambda: None) -> Tensor:
    """Train on this rank's share of the data, and return all parameters as one vector."""
    torch.manual_seed(1 + dist.get_rank())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(20):
        inputs = torch.randn(16, 8)
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        after_backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def start_average(parameter: Tensor) -> dist.Work:
    """Start to average the gradient over all ranks; the work's `wait` completes it."""
    assert parameter.grad is not None
    work: dist.Work = dist.all_reduce(parameter.grad.div_(dist.get_world_size()), async_op=True)
    return work


def by_hand(model: nn.Module) -> Tensor:
    """Run one all-reduce per parameter after backward: simple, but all of it is waiting."""
    return train(model, lambda: [start_average(one).wait() for one in model.parameters()])


def by_hooks(model: nn.Module) -> Tensor:
    """Send each gradient as soon as it is ready, while backward computes the next one."""
    under_way: list[dist.Work] = []
    for one in model.parameters():
        one.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda parameter: under_way.append(start_average(parameter))
        )
    return train(model, lambda: [under_way.pop().wait() for _ in range(len(under_way))])


def by_ddp(model: nn.Module) -> Tensor:
    """Let DDP use such hooks, but with buckets of gradients: fewer and larger messages."""
    return train(nn.parallel.DistributedDataParallel(model))


def main() -> None:
    """Train in all three ways on this rank, and compare the results with each other and rank 0."""
    dist.init_process_group("gloo")
    # a + b equals b + a exactly. With more ranks the order matters, and buckets change it.
    tolerance = 0.0 if dist.get_world_size() == 2 else 1e-6
    reference = by_hand(new_model())
    dist.broadcast(rank_0 := reference.clone(), src=0)
    results = {"rank 0": rank_0, "hooks": by_hooks(new_model()), "DDP": by_ddp(new_model())}
    for name, parameters in results.items():
        difference = (parameters - reference).abs().max().item()
        if difference > (0.0 if name == "rank 0" else tolerance):
            raise SystemExit(f"{name} differs from averaging by hand by {difference:.1e}")
        print(f"{name}: differs from averaging by hand by {difference:.1e}", flush=True)
    dist.destroy_process_group()
    os._exit(0)  # now: gloo's threads could abort or hang the interpreter's shutdown


if __name__ == "__main__":
    main()
