"""This machine's GPUs, each lent to one pod: NCCL refuses two ranks on one GPU."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ddp_operator.api.devices import accelerators


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return CUDA's names of the GPUs that this process may use: CUDA_VISIBLE_DEVICES, or all."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name for name in chosen.split(",") if name not in ("", "-1"))
    devices = (re.fullmatch(r"nvidia\d+", path.name) for path in Path("/dev").glob("nvidia*"))
    return tuple(str(i) for i in range(sum(device is not None for device in devices)))


def gpus_of(container: Mapping[str, Any]) -> int:
    """Return the GPUs that a container requests. A share of a GPU counts as one."""
    return sum(int(str(amount)) for amount in accelerators(container).values())


class GpuPool:
    """Lends GPUs. A request waits until enough are free."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.total = len(names)
        self._free = list(names)
        self._returned = asyncio.Event()

    @asynccontextmanager
    async def lend(self, count: int) -> AsyncIterator[tuple[str, ...]]:
        """Lend `count` GPUs (at most `total`) during the context."""
        while len(self._free) < count:
            await self._returned.wait()
        lent, self._free = tuple(self._free[:count]), self._free[count:]
        try:
            yield lent
        finally:
            self._free.extend(lent)
            self._returned.set()
            self._returned = asyncio.Event()
