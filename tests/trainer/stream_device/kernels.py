"""SyncBatchNorm's kernels, which torch has only for GPUs, in plain torch.

torch's own module and autograd function call them for one rank, and exchange the results.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def batch_norm_stats(inputs: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return mean and inverse standard deviation of each channel."""
    values = inputs.float()
    dims = _all_but_channels(inputs)
    return values.mean(dims), _inverse(values.var(dims, unbiased=False), eps)


def batch_norm_gather_stats_with_counts(
    inputs: Tensor,
    means: Tensor,
    inverses: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return them for all ranks together; `counts`: the number of values of each rank."""
    del inputs
    total, weights = counts.sum(), counts.view(-1, 1)
    mean = (means * weights).sum(0) / total
    variances = inverses.pow(-2) - eps
    variance = ((variances + (means - mean) ** 2) * weights).sum(0) / total
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance * total / (total - 1), momentum)
    return mean, _inverse(variance, eps)


def batch_norm_elemt(
    inputs: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inverse: Tensor,
    eps: float,
) -> Tensor:
    del eps
    assert weight is not None
    assert bias is not None
    scale = _by_channel(inverse * weight, inputs)
    outputs = (inputs - _by_channel(mean, inputs)) * scale + _by_channel(bias, inputs)
    return outputs.to(inputs.dtype)


def batch_norm_backward_reduce(
    gradients: Tensor,
    inputs: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    *_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return this rank's part of two sums over all ranks, and the parameters' gradients."""
    del weight
    dims = _all_but_channels(inputs)
    values = gradients.float()
    of_bias = values.sum(dims)
    of_mean = (values * (inputs - _by_channel(mean, inputs))).sum(dims)
    return of_bias, of_mean, of_mean * inverse, of_bias


def batch_norm_backward_elemt(
    gradients: Tensor,
    inputs: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    sum_of_gradients: Tensor,
    sum_with_inputs: Tensor,
    counts: Tensor,
) -> Tensor:
    """Return the gradient of the inputs, from the sums over all ranks."""
    assert weight is not None
    total = counts.sum()
    deviation = inputs - _by_channel(mean, inputs)
    share = _by_channel(inverse**2 * sum_with_inputs / total, inputs) * deviation
    rest = gradients - _by_channel(sum_of_gradients / total, inputs) - share
    return (rest * _by_channel(inverse * weight, inputs)).to(inputs.dtype)


def install() -> None:
    """Let torch call them, and pass its checks that SyncBatchNorm runs on a GPU."""
    for kernel in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        replace(torch, kernel.__name__, kernel)
    replace(DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda *_: None)
    replace(nn.SyncBatchNorm, "forward", _as_on_a_gpu(nn.SyncBatchNorm.forward))


def replace(owner: object, name: str, value: object) -> None:
    """Replace an attribute of a class or module."""
    setattr(owner, name, value)


def _as_on_a_gpu(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    name = torch._C._get_privateuse1_backend_name

    def as_on_a_gpu(module: nn.SyncBatchNorm, inputs: Tensor) -> Tensor:
        torch._C._get_privateuse1_backend_name = lambda: inputs.device.type
        try:
            return forward(module, inputs)
        finally:
            torch._C._get_privateuse1_backend_name = name

    return as_on_a_gpu


def _inverse(variance: Tensor, eps: float) -> Tensor:
    return (variance + eps).rsqrt()


def _all_but_channels(inputs: Tensor) -> list[int]:
    return [dim for dim in range(inputs.dim()) if dim != 1]


def _by_channel(values: Tensor, inputs: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (inputs.dim() - 2))
