"""The record of what a cluster instance has on this machine, written before it exists.

One folder per instance, outside the checkout, holds a record from which `down` can clear everything
away in another process, after any crash.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from tests.cluster.cache import exclusive
from tests.cluster.errors import ClusterError
from tests.cluster.processes import ProcessId

Kind = Literal["control-plane", "node", "kind"]

# Below Linux's usual range of ephemeral ports (32768 and up), so that no outgoing connection takes
# the port while its server is being restarted.
PORTS = range(20000, 30000)
# Bridges get 10.<one of these>.0.0/24; apart from 10.244, which flannel and kind like.
SUBNETS = range(200, 240)


@dataclass
class Instance:
    """One cluster: where it lives, who owns it, and which processes belong to it."""

    name: str
    kind: Kind
    folder: Path
    # etcd's data, in memory where there is a tmpfs.
    data_dir: Path
    # The cluster goes when this process ends; None: it stays until `down`.
    owner: ProcessId | None = None
    ports: list[int] = field(default_factory=list)
    subnet: int | None = None
    # Which of the kept image stores a node uses; one that runs has its own.
    image_store: int | None = None
    processes: dict[str, ProcessId] = field(default_factory=dict)
    # Empty folders that had to be made outside of this instance's own.
    made_folders: list[str] = field(default_factory=list)

    @property
    def logs(self) -> Path:
        """The folder of the components' log files."""
        return self.folder / "logs"

    def save(self, *, into: Path | None = None) -> None:
        """Write the record (by default to its own folder), replacing the old one in one step."""
        folder = into or self.folder
        temporary = folder / ".instance.json.new"
        temporary.write_text(json.dumps(asdict(self), default=str, indent=1))
        temporary.rename(folder / "instance.json")

    def record(self, component: str, process: ProcessId) -> None:
        """Note a process as part of the instance."""
        self.processes[component] = process
        self.save()

    @classmethod
    def load(cls, folder: Path) -> Instance:
        """Read the record of the instance in ``folder``."""
        raw = json.loads((folder / "instance.json").read_text())
        return cls(
            name=raw["name"],
            kind=raw["kind"],
            folder=Path(raw["folder"]),
            data_dir=Path(raw["data_dir"]),
            owner=ProcessId(**raw["owner"]) if raw["owner"] else None,
            ports=raw["ports"],
            subnet=raw["subnet"],
            image_store=raw["image_store"],
            made_folders=raw["made_folders"],
            processes={name: ProcessId(**value) for name, value in raw["processes"].items()},
        )


def state_root() -> Path:
    """Return the folder of all instances of this user; root's is kept out of /tmp."""
    if os.geteuid() == 0:
        return Path("/var/lib/ddp-test-cluster")
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base, f"ddp-test-cluster-{os.geteuid()}")


def data_root() -> Path:
    """Return where etcd's data goes: shared memory where possible, for speed."""
    shared = Path("/dev/shm")
    # Docker gives a container 64 MiB there, which a benchmark's objects would fill.
    if os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 512 * 2**20:
        return shared / f"ddp-test-cluster-{os.geteuid()}"
    return state_root() / "data"


@contextmanager
def registry() -> Iterator[None]:
    """Hold the list of instances still while one is added or removed."""
    root = state_root()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with exclusive(root / "lock", waiting_for="another test cluster command"):
        yield


def instances() -> list[Instance]:
    """Return all instances on record, whether or not they run."""
    root = state_root()
    if not root.is_dir():
        return []
    found = []
    for record in sorted(root.glob("*/instance.json")):
        with suppress(FileNotFoundError):  # removed meanwhile
            found.append(Instance.load(record.parent))
    return found


def create(name: str, kind: Kind, *, owner: ProcessId | None, ports: int) -> Instance:
    """Reserve a name, ``ports`` free ports and (for a node) a subnet; the caller starts things.

    Raises ClusterError when the name is taken.
    """
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", name):
        raise ClusterError(f"cluster name {name!r}: use at most 32 of a-z, 0-9 and -")
    with registry():
        others = instances()
        folder = state_root() / name
        if folder.exists():
            raise ClusterError(f"cluster {name!r} exists already")
        instance = Instance(
            name=name,
            kind=kind,
            folder=folder,
            data_dir=data_root() / name,
            owner=owner,
            ports=_free_ports(ports, taken={port for other in others for port in other.ports}),
        )
        if kind == "node":
            instance.subnet = _free_subnet({other.subnet for other in others})
            stores = {other.image_store for other in others}
            instance.image_store = next(store for store in count() if store not in stores)
        for abandoned in state_root().glob(".new-*"):
            shutil.rmtree(abandoned)
        # Complete from the first moment on: the record comes into being with its folder.
        with tempfile.TemporaryDirectory(prefix=".new-", dir=state_root()) as scratch:
            staged = Path(scratch, name)
            (staged / "logs").mkdir(parents=True)
            instance.save(into=staged)
            staged.rename(folder)
        instance.data_dir.mkdir(parents=True, mode=0o700)
        return instance


def forget(instance: Instance) -> None:
    """Delete the instance's folders; nothing of it may be running or mounted any more."""
    shutil.rmtree(instance.data_dir, ignore_errors=True)
    # The record goes last, so that an interrupted deletion can be taken up again.
    for path in instance.folder.iterdir():
        if path.name != "instance.json":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(instance.folder)


def _free_ports(wanted: int, taken: set[int]) -> list[int]:
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(found) == wanted:
            break
        if port in taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


def _free_subnet(taken: set[int | None]) -> int:
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    # Destinations stand there as little-endian hexadecimal words.
    used = {bytes.fromhex(line.split()[1])[::-1] for line in routes}
    for number in SUBNETS:
        if number not in taken and bytes([10, number, 0, 0]) not in used:
            return number
    raise ClusterError("no free 10.x.0.0/24 network for another cluster")
