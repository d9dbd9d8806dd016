"""Tells by its resource name whether a resource of a container is an accelerator.

Each unit is a device, or a share of one, that a process can use; `nprocPerNode: auto` counts them.
The names are those of the device plugins of NVIDIA, AMD, Intel, Habana, AWS, Google, Huawei,
Cambricon, Hygon, Enflame, MetaX, Iluvatar, Moore Threads and Kunlunxin, and of HAMi and Volcano,
which share devices. Only prefixes and suffixes, because the API server cannot bound the cost of any
other search in a name.
"""

from collections.abc import Mapping
from typing import Any, Final

SUFFIXES: Final = (
    "pu",  # gpu, vgpu, tpu, npu, xpu, hpu, ipu
    *("gpu.shared", "gpu-number", "gpu-count", "mlu", "mlunum", "gcu", "dcu", "dcunum"),
    *("_nps1", "_nps2", "_nps4"),  # partitions of AMD's GPUs, such as amd.com/cpx_nps4
)
"""For any vendor's domain."""
PREFIXES: Final = (
    *("nvidia.com/gpu.", "nvidia.com/gpu-", "nvidia.com/mig-", "gpu.intel.com/i915"),
    *("gpu.intel.com/xe", "habana.ai/", "aws.amazon.com/neuron", "huawei.com/Ascend"),
    "huawei.com/ascend",
)
EXCEPT: Final = (
    *("cpu", "-mem", "-memory", "-cores", "_monitoring"),
    *("koordinator.sh/gpu", "koordinator.sh/gpu.shared"),  # in hundredths of a GPU
)
"""Endings of names that are not devices, or that count parts of a device."""


def is_accelerator(resource: str) -> bool:
    """Return whether a resource of this name is a GPU, another accelerator, or a share of one."""
    is_device = resource.endswith(SUFFIXES) or resource.startswith(PREFIXES)
    return is_device and not resource.endswith(EXCEPT)


def accelerators(container: Mapping[str, Any]) -> Mapping[str, int | str]:
    """Return the accelerators in a container's limits."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return {name: amount for name, amount in limits.items() if is_accelerator(name)}


def has_accelerators(container: Mapping[str, Any]) -> bool:
    """Return whether a container requests accelerators. An amount of 0, as some write it, is no
    request.
    """
    return any(str(amount) != "0" for amount in accelerators(container).values())


def _any(name: str, how: str, parts: tuple[str, ...]) -> str:
    return " || ".join(f"{name}.{how}('{part}')" for part in parts)


def is_accelerator_cel(name: str) -> str:
    """CEL: `is_accelerator` for a resource's name."""
    is_device = f"{_any(name, 'endsWith', SUFFIXES)} || {_any(name, 'startsWith', PREFIXES)}"
    return f"(({is_device}) && !({_any(name, 'endsWith', EXCEPT)}))"
