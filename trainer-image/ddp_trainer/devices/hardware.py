"""Selects and configures a rank's device; refuses options that the device does not support."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import torch
from torch import nn

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.environment import Backend, Placement
from ddp_trainer.settings.options import Options


def default_backend() -> Backend:
    """Return the backend of ranks for which none was chosen."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def pin_device(
    placement: Placement, *, local_rank: int, device_ids: tuple[int, ...] | None
) -> torch.device:
    """Return the device of a rank and make it the process's default.

    Raises:
        ConfigurationError: this pod lacks GPUs that its ranks need.
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
    # Before any group or model exists: without this, the first use of CUDA takes memory on GPU 0.
    torch.cuda.set_device(device)
    return device


def gpu_of(
    local_rank: int, *, local_world_size: int, gpus: int, device_ids: tuple[int, ...] | None
) -> int:
    """Return the GPU of a local rank; `gpus`: number of visible GPUs.

    Raises:
        ConfigurationError: there are too few, or `device_ids` names missing ones.
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
            f"--device-ids {names}: name a different GPU for each of the {local_world_size} "
            "processes in this pod"
        )
    if not all(0 <= number < gpus for number in device_ids):
        raise ConfigurationError(
            f"--device-ids {names}: {visible}, counted from 0; raise the pod's nvidia.com/gpu "
            "limit or name others"
        )
    return device_ids[local_rank]


def check_abilities(options: Options, device: torch.device) -> None:
    """Refuse options that this machine does not support.

    Raises:
        ConfigurationError: an option is not supported.
    """
    if device.type != "cuda":
        if options.optimization.precision == "fp16":
            raise ConfigurationError("--precision fp16 needs a GPU: use bf16 on CPUs")
        if options.ddp.sync_batch_norm:
            raise ConfigurationError(
                "--sync-batch-norm needs GPUs, because torch supports it only there: remove it"
            )
    if options.hardware.compile == "inductor" and (lacking := _lacking_to_compile(device)):
        raise ConfigurationError(
            f"--compile inductor needs {' and '.join(lacking)}, which this machine lacks: add "
            "it to the image"
        )


def make_deterministic() -> None:
    """Restrict torch in this process to algorithms that return the same bits each time."""
    # cuBLAS reads this at its first use; either of two values makes it deterministic:
    # https://docs.nvidia.com/cuda/cublas/#results-reproducibility
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def prepare_model(model: nn.Module, options: Options, device: torch.device) -> nn.Module:
    """Return the model prepared for training; its results stay the same.

    It is compiled in place, inside its DDP wrapper: a new group needs a new wrapper, but no new
    compilation.
    """
    if options.ddp.sync_batch_norm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    model = model.to(device)
    if options.hardware.compile != "no":
        model.compile(backend=options.hardware.compile)
    return model


def _lacking_to_compile(device: torch.device) -> list[str]:
    """Return the tools that inductor lacks: it generates C++, and Triton on GPUs generates C."""
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
