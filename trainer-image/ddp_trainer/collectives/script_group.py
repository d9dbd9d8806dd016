"""The process groups that a script sees; they stay the same while the job's groups change.

In a job, `torch.distributed`'s default group, and each group that the script makes with
`new_group`, is one of these. It forwards collectives to the present group of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import (
    HashStore,
    _register_process_group,
    _unregister_process_group,
)
from torch.distributed import device_mesh, distributed_c10d
from torch.futures import Future

from ddp_trainer.collectives.script_collective import Collective
from ddp_trainer.exit_codes import ConfigurationError, NewProcessError
from ddp_trainer.system.torch_release import release

_NAMES = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier", "gather", "scatter"),
    *("allgather", "allgather_coalesced", "reduce_scatter", "alltoall"),
    # torch 2.13 renamed those of one tensor.
    *("all_gather_single", "all_gather_single_coalesced", "_allgather_base"),
    *("allgather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced", "_reduce_scatter_base"),
    *("all_to_all_single", "alltoall_base", "send", "recv", "recv_anysource"),
)
"""The methods of a process group that `torch.distributed` calls for collectives and messages."""
_DEFAULT = "ddp_trainer"


class Ended(dist.Work):
    """A completed collective."""

    def __init__(self, outputs: list[Tensor]) -> None:
        """`outputs`: tensors that it has written."""
        super().__init__()
        self._outputs = outputs

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return at once."""
        del timeout
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def result(self) -> list[Tensor]:
        """Return the tensors that it has written."""
        return self._outputs

    def get_future(self) -> Future[Any]:
        """Return a completed future."""
        future: Future[Any] = Future()
        future.set_result(self._outputs)
        return future


class ScriptGroup(dist.ProcessGroup):
    """A process group of the script, on one of its member ranks."""

    def __init__(
        self,
        label: str,
        ranks: tuple[int, ...] | None,
        carry_out: Callable[[ScriptGroup, Collective], dist.Work] | None = None,
        make_group: Callable[[tuple[int, ...]], ScriptGroup] | None = None,
    ) -> None:
        """`ranks`: its members; None: all ranks of the job. `new_group` calls `make_group`.

        `carry_out` runs its collectives; None: `serve` follows. `label`: the same on all members
        and unique to this group.
        """
        super().__init__(0, 1)  # type: ignore[call-arg]  # see `rank` and `size`
        self.label = label
        self.ranks = ranks
        self._carry_out = carry_out
        self._make_group = make_group
        self._entered: dist.ProcessGroup | None = None
        self._formed: dist.ProcessGroup | None = None
        self._form: Callable[[], dist.ProcessGroup] | None = None
        self._expected: tuple[int, int] | None = None
        """Rank and size until the job has formed, if the script makes a mesh before it joins."""

    def serve(
        self,
        carry_out: Callable[[ScriptGroup, Collective], dist.Work],
        make_group: Callable[[tuple[int, ...]], ScriptGroup],
    ) -> None:
        """Use these functions from now on."""
        self._carry_out, self._make_group = carry_out, make_group

    @property
    def formed(self) -> dist.ProcessGroup:
        """Return the group that runs its collectives; form it with the members if needed."""
        if self._formed is None:
            assert self._form is not None, "the job is not formed"
            self._formed = self._form()
        return self._formed

    def enter(
        self, world: dist.ProcessGroup, form: Callable[[], dist.ProcessGroup] | None = None
    ) -> None:
        """Use a group that the job has formed.

        `form` forms the members' own group at its first use, because a rank that replaces a lost
        one makes this group later than the others. None: all ranks of the world are members.
        """
        self.leave()
        self._entered = world
        self._form = form
        self._formed = world if form is None else None
        known = distributed_c10d._world
        known.pg_map[self] = known.pg_map[world]
        known.pg_backend_config[self] = known.pg_backend_config[world]
        self._register(self.ranks or range(world.size()))

    def expect(self, rank: int, size: int) -> None:
        """Take this place until the job has formed, so that a mesh can be made of the group."""
        if self._entered is None:
            self.leave()
            self._expected = rank, size
            distributed_c10d._world.pg_map[self] = "gloo", HashStore()
            self._register(self.ranks or range(size))

    def _register(self, members: Sequence[int]) -> None:
        known = distributed_c10d._world
        names: dict[dist.ProcessGroup, Any] = known.pg_names
        names[self] = self.group_name
        _register_process_group(self.group_name, self)
        known.pg_to_tag[self] = self._tag
        known.tags_to_pg[self._tag] = [self]
        known.pg_group_ranks[self] = {rank: number for number, rank in enumerate(members)}

    def leave(self) -> None:
        """Release the group that the job has formed."""
        known = distributed_c10d._world
        if self in known.pg_names:
            _unregister_process_group(self.group_name)
            known.tags_to_pg.pop(self._tag, None)
        self._entered = self._formed = self._form = None  # a group ends with its last reference
        known.pg_to_tag.pop(self, None)
        for table in (known.pg_map, known.pg_names, known.pg_backend_config, known.pg_group_ranks):
            table.pop(self, None)

    @property
    def _world(self) -> dist.ProcessGroup:
        assert self._entered is not None, "the job is not formed"
        return self._entered

    # Methods that torch calls.

    @property
    def group_name(self) -> Any:  # torch's type for it is newer than torch 2.7
        """Return the name by which a DeviceMesh finds the group, also after it formed again."""
        return f"{_DEFAULT}/{self.label}" if self.label else _DEFAULT

    @property
    def _tag(self) -> str:
        return f"user:{self.group_name}"  # a DeviceMesh of torch 2.7 finds the group by this

    def rank(self) -> int:
        """Return this rank's number in the group."""
        if self._entered is None and self._expected is not None:
            return self._expected[0]
        own = self._world.rank()
        if self.ranks is None:
            return own
        if own not in self.ranks or max(self.ranks) >= self._world.size():
            raise NewProcessError(
                f"the ranks have changed: this is rank {own} of {self._world.size()}, and the "
                f"script made a group of {list(self.ranks)} with new_group(): it must restart"
            )
        return self.ranks.index(own)

    def size(self) -> int:
        """Return the number of members."""
        if self._entered is None and self._expected is not None:
            return self._expected[1]
        return len(self.ranks) if self.ranks is not None else self._world.size()

    def new_group(self, ranks: Sequence[int], **_: object) -> ScriptGroup | None:
        """Make a group of some ranks; torch's `new_group` calls this on its default group.

        torch passes no backend, and its other options are for backends: the group uses that of the
        job.
        """
        assert self._make_group is not None
        return self._make_group(tuple(ranks)) if self._world.rank() in ranks else None

    def monitored_barrier(self, *_: object, **__: object) -> None:
        """Wait until all members have called this."""
        assert self._carry_out is not None, "the job is not formed"
        self._carry_out(self, Collective("barrier", ())).wait()

    @property
    def _device_types(self) -> list[torch.device]:
        return self._world._device_types if self._entered else [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        return self.formed._get_backend(device)

    def _get_backend_name(self) -> str:
        return self._world._get_backend_name()

    def abort(self) -> None:
        """Do nothing; the job aborts the group that it has formed."""

    def shutdown(self) -> None:
        """Do nothing; the job shuts down the group that it has formed."""


def _collective(name: str) -> Callable[..., dist.Work]:
    def carried_out(group: ScriptGroup, *arguments: Any, **named: Any) -> dist.Work:
        if name == "allgather" and len(arguments[0][0]) != group.size():
            # Only C++ passes another number, and only for what DDP calls when it is created.
            raise ConfigurationError(
                "DistributedDataParallel cannot continue when a rank is lost: create it with "
                "job.wrap(model), which accepts its arguments"
            )
        assert group._carry_out is not None, "the job is not formed"
        return group._carry_out(group, Collective(name, (*arguments, *named.values())))

    return carried_out


for _name in _NAMES:
    setattr(ScriptGroup, _name, _collective(_name))


def _new_group(ranks: Sequence[int] | None = None, *arguments: Any, **named: Any) -> Any:
    """Make a group like torch 2.13, which calls `new_group` of its default group."""
    world = distributed_c10d._get_default_group()
    if not isinstance(world, ScriptGroup):
        return _torch_new_group(ranks, *arguments, **named)
    made = world.new_group(sorted(ranks) if ranks is not None else range(world.size()))
    return made if made is not None else dist.GroupMember.NON_GROUP_MEMBER


_torch_new_group = distributed_c10d.new_group
if release() < (2, 13):
    for _module in (dist, distributed_c10d, device_mesh):
        _module.new_group = _new_group  # type: ignore[attr-defined]
