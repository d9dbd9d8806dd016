"""Ranks that run collectives of several groups, and the dumps that torch would write of them.

Each rank has one stream: its operations run in order, and one completes when it is the next on the
streams of all members of its group. A host runs at most `ahead` operations ahead of its stream.
"""

import json
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ddp_operator.hang.traces import Dump, Trace, dump_of
from ddp_trainer.flight_recorder.dump import reduce_dump

BEGIN_NS = 1_790_000_000 * 10**9
FRAMES = [
    {"name": "all_reduce", "filename": "/torch/distributed/distributed_c10d.py", "line": 2501},
    {"name": "step", "filename": "/app/train.py", "line": 20},
]


class Call(NamedTuple):
    """A collective of the program."""

    group: str
    name: str = "all_reduce"
    size: int = 16
    dtype: str = "Float"


@dataclass
class Entry:
    """A collective that a rank entered."""

    call: Call
    seq: int
    created_ns: int
    done: bool = False
    seen: bool = True
    """The rank notices when it is done."""


@dataclass(frozen=True)
class Form:
    """How dumps are written."""

    only_active: bool = False
    buffer: int = 2000
    as_json: bool = False
    status: bool = True
    backend: str = "nccl"


@dataclass
class Ranks:
    """A program, by rank, and what happens to it."""

    groups: Mapping[str, tuple[int, ...]]
    programs: dict[int, list[Call]]
    ahead: int = 0
    hosts: dict[int, int] = field(default_factory=dict)
    """By rank: how many operations its host enters; then it hangs."""
    blind: dict[int, int] = field(default_factory=dict)
    """By rank: from which operation on it notices no completion."""
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    at: int = BEGIN_NS

    @classmethod
    def same(
        cls, groups: Mapping[str, tuple[int, ...]], program: Sequence[Call], *, ahead: int = 0
    ) -> "Ranks":
        """Let all ranks run one program, each the calls of its groups."""
        ranks = sorted({rank for members in groups.values() for rank in members})
        own = {rank: [c for c in program if rank in groups[c.group]] for rank in ranks}
        return cls(groups, own, ahead)

    def run(self, rounds: int = 10**6) -> "Ranks":
        """Run until nothing moves."""
        self.entries = {rank: [] for rank in self.programs}
        for _ in range(rounds):
            if not (self._enter() | self._complete()):
                break
        return self

    def _enter(self) -> bool:
        moved = False
        for rank, program in self.programs.items():
            entries = self.entries[rank]
            open_ = sum(not entry.done for entry in entries[-self.ahead - 1 :])
            end = min(len(program), self.hosts.get(rank, len(program)))
            if len(entries) < end and open_ <= self.ahead:
                call = program[len(entries)]
                seq = 1 + sum(entry.call.group == call.group for entry in entries)
                self.at += 1000
                seen = len(entries) < self.blind.get(rank, 10**9)
                entries.append(Entry(call, seq, self.at, seen=seen))
                moved = True
        return moved

    def _complete(self) -> bool:
        heads = {
            rank: next((entry for entry in entries[-self.ahead - 1 :] if not entry.done), None)
            for rank, entries in self.entries.items()
        }
        moved = False
        for group, members in self.groups.items():
            found = [heads[rank] for rank in members]
            ready = [entry for entry in found if entry and entry.call.group == group]
            # Ranks with different tensors wait for bytes that nobody sends.
            if len(ready) == len(members) and len({entry.call for entry in ready}) == 1:
                for entry in ready:
                    entry.done = moved = True
        return moved

    def dump(self, rank: int, form: Form = Form()) -> bytes:
        """Return what the recorder of a rank writes."""
        own = {name: ranks for name, ranks in self.groups.items() if rank in ranks}
        ids = {name: index for index, name in enumerate(own)}
        found = []
        status: dict[str, dict[str, Any]] = defaultdict(
            lambda: {"last_enqueued_collective": -1, "last_completed_collective": -1}
        )
        for record, entry in enumerate(self.entries[rank]):
            name, done = entry.call.group, entry.done and entry.seen
            status[str(ids[name])]["last_enqueued_collective"] = entry.seq
            if done:
                status[str(ids[name])]["last_completed_collective"] = entry.seq
            if not (form.only_active and done):
                found.append(self._entry(record, entry, ids[name], form, done=done))
        content: dict[str, Any] = {
            "version": "2.10",
            "entries": found[-form.buffer :],
            "pg_config": {
                name: {"name": name, "desc": _description(name), "ranks": str([*ranks])}
                for name, ranks in own.items()
            },
            "pg_status": {
                key: {name: str(value) if form.as_json else value for name, value in each.items()}
                for key, each in status.items()
            },
        }
        if not form.status:
            del content["pg_status"]
        return json.dumps(content).encode() if form.as_json else pickle.dumps(content, 2)

    def _entry(
        self, record: int, entry: Entry, pg_id: int, form: Form, *, done: bool
    ) -> dict[str, Any]:
        call = entry.call
        gloo = form.backend == "gloo"
        return {
            "record_id": record,
            "pg_id": pg_id,
            "process_group": (call.group, _description(call.group)),
            "collective_seq_id": entry.seq,
            "p2p_seq_id": 0,
            "profiling_name": f"{form.backend}:{call.name}",
            "time_created_ns": entry.created_ns,
            "input_sizes": [[call.size]],
            "input_dtypes": [call.dtype],
            "output_sizes": [[call.size]],
            "output_dtypes": [call.dtype],
            "state": "completed" if done and not gloo else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": done,
            "is_p2p": False,
            "frames": FRAMES,
        }

    def dumps(self, form: Form = Form(), *, without: Sequence[int] = ()) -> dict[int, Dump]:
        """Return the dumps as the operator reads them."""
        return {rank: read(self.dump(rank, form)) for rank in self.programs if rank not in without}


def read(dump: bytes) -> Dump:
    """Let a launcher reduce a dump, and the operator read its answer."""
    return dump_of(Trace.read(json.dumps(reduce_dump(dump))))


def _description(name: str) -> str:
    return "default_pg" if name == "0" else f"GROUP_{name}"
