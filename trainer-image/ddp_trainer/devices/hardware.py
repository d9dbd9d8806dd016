"""Which device a rank computes on, and how exactly; what a device cannot do is said at once."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import torch
from torch import nn

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.environment import Placement
from ddp_trainer.settings.options import Options


def pin_device(
    placement: Placement, *, local_rank: int, device_ids: tuple[int, ...] | None
) -> torch.device:
    """The device of a rank, from here on its process's default.

    Raises:
        ConfigurationError: this pod has not the GPUs that its ranks need.
    """
    if placement.backend == "gloo":
        if device_ids is not None:
            raise ConfigurationError("--device-ids is for GPUs: set the backend to nccl")
        return torch.device("cpu")
    device = torch.device(
        "cuda",
        gpu_of(
            local_rank,
            local_world_size=placement.local_world_size,
            gpus=torch.cuda.device_count(),
            device_ids=device_ids,
        ),
    )
    # Before any group or model exists: whoever touches CUDA unpinned takes memory on GPU 0.
    torch.cuda.set_device(device)
    return device


def gpu_of(
    local_rank: int, *, local_world_size: int, gpus: int, device_ids: tuple[int, ...] | None
) -> int:
    """The GPU of a local rank, where `gpus` are visible.

    Raises:
        ConfigurationError: there are too few, or `device_ids` names some that are not there.
    """
    visible = f"{gpus} {'is' if gpus == 1 else 'are'} visible"
    if device_ids is None:
        if gpus < local_world_size:
            raise ConfigurationError(
                f"{local_world_size} processes in this pod need as many GPUs, but {visible}: "
                "raise the pod's nvidia.com/gpu limit, lower nprocPerNode, or set the backend to "
                "gloo to train on CPUs"
            )
        return local_rank
    names = ",".join(str(number) for number in device_ids)
    if len(device_ids) != local_world_size or len(set(device_ids)) != local_world_size:
        raise ConfigurationError(
            f"--device-ids {names}: name a GPU of its own for each of the {local_world_size} "
            "processes in this pod"
        )
    if not all(0 <= number < gpus for number in device_ids):
        raise ConfigurationError(
            f"--device-ids {names}: {visible}, counted from 0; raise the pod's nvidia.com/gpu "
            "limit or name others"
        )
    return device_ids[local_rank]


def check_abilities(options: Options, device: torch.device) -> None:
    """Refuse what this machine cannot do.

    Raises:
        ConfigurationError: with the remedy.
    """
    if device.type != "cuda":
        if options.optimization.precision == "fp16":
            raise ConfigurationError("--precision fp16 needs a GPU: use bf16 on CPUs")
        if options.ddp.sync_batch_norm:
            raise ConfigurationError(
                "--sync-batch-norm needs GPUs, since torch has it for them alone: leave it out"
            )
    if options.hardware.compile == "inductor" and (lacking := _lacking_to_compile(device)):
        raise ConfigurationError(
            f"--compile inductor needs {' and '.join(lacking)}, which this machine has not: build "
            "an image that has"
        )


def make_deterministic() -> None:
    """Let torch use only algorithms that give the same bits each time, in this process."""
    # Read by cuBLAS when it is first used; either of two values makes it deterministic:
    # https://docs.nvidia.com/cuda/cublas/#results-reproducibility
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def prepare_model(model: nn.Module, options: Options, device: torch.device) -> nn.Module:
    """The model as it trains here; what it computes stays the same.

    It is compiled in place, inside its DDP wrapper: a group that is formed anew has a new wrapper,
    but nothing to compile again.
    """
    if options.ddp.sync_batch_norm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    model = model.to(device)
    if options.hardware.compile != "no":
        model.compile(backend=options.hardware.compile)
    return model


def _lacking_to_compile(device: torch.device) -> list[str]:
    """What inductor writes is C++, and on GPUs Triton's, which starts its kernels by way of C."""
    language, variable, usual = "C++", "CXX", ("g++", "clang++")
    if device.type == "cuda":
        language, variable, usual = "C", "CC", ("gcc", "clang")
    compilers = (os.environ[variable],) if variable in os.environ else usual
    headers = Path(torch.__file__).parent / "include/torch"
    needed = {
        f"a {language} compiler ({usual[0]}, or one that {variable} names)": any(
            shutil.which(name) for name in compilers
        ),
        "Python's headers (python3-dev)": Path(sysconfig.get_path("include"), "Python.h").exists(),
        "torch's headers": device.type == "cuda" or headers.is_dir(),
    }
    return [what for what, is_there in needed.items() if not is_there]
