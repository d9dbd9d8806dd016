"""Measures a comparison of replicas on a GPU: the sum of all bits of transformers and AdamW.

    python -m tests.trainer.gpu.checks REPEAT

Prints for each model the size and number of its tensors, and the milliseconds: median, least and
most.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from ddp_trainer.library.checks.verification import compared
from ddp_trainer.run.fingerprint import sum_of_bits
from torch import nn

_SIZES = ((256, 12), (1024, 24), (2048, 24))
"""Widths and layers."""
_WARM_UPS = 3


def main(repeat: int) -> None:
    """Time each model."""
    for width, layers in _SIZES:
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, device="cuda")
        model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        tensors = list(compared([model], [optimizer]))
        took = [_timed(model, optimizer) for _ in range(_WARM_UPS + repeat)][_WARM_UPS:]
        found = {
            "GB": round(sum(tensor.nbytes for tensor in tensors) / 1e9, 2),
            "tensors": len(tensors),
            "ms": [round(each, 2) for each in (statistics.median(took), min(took), max(took))],
        }
        print(json.dumps(found), flush=True)


def _timed(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    sum_of_bits(compared([model], [optimizer]))
    return (time.perf_counter() - begun) * 1e3


if __name__ == "__main__":
    main(int(sys.argv[1]))
