"""Dumps of torch itself name the missing rank; gloo records collectives as NCCL does."""

import json
import sys
from pathlib import Path

import pytest
import torch
from ddp_client.views.traces import ReducedDumps
from ddp_operator.hang.traces import analyse
from ddp_trainer.flight_recorder.directory import reduce_directory

from tests.trainer.support.pods import job

SCRIPT = """
import json, os, pathlib, sys, threading, time
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
dist.init_process_group("gloo")
until = time.monotonic() + 200
for count in range(3):
    dist.all_reduce(torch.ones(4))

def dump(calls):
    while len(json.loads(c10d._dump_fr_trace_json())["entries"]) < calls:
        assert time.monotonic() < until
        time.sleep(0.01)
    (folder / f"part.{rank}.").write_bytes(c10d._dump_fr_trace())
    (folder / f"part.{rank}.").rename(folder / f"rank_{rank}")

if rank == 0:
    def end():
        dump(4)
        os._exit(0)
    threading.Thread(target=end).start()
    dist.all_reduce(torch.ones(4))
dump(3)
while not (folder / "rank_0").exists():
    assert time.monotonic() < until
    time.sleep(0.01)
"""


@pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"), reason="this torch records no gloo"
)
def test_a_dump_of_this_torch_names_the_rank(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (dumps := tmp_path / "dumps").mkdir()
    with job(tmp_path, nodes=1, local_world_size=2) as two:
        [pod] = two.start_all("--", sys.executable, str(tmp_path / "script.py"), str(dumps))
        assert pod.wait() == 0, pod.log
    reduced = reduce_directory(dumps)
    assert not reduced["unreadable"]
    found = ReducedDumps.read(json.dumps(reduced)).by_rank()
    verdict = analyse(found)
    [finding] = verdict.findings
    assert (finding.kind, finding.ranks, finding.waiting) == ("missing", (1,), (0,))
    assert finding.collective is not None
    assert (finding.collective.name, finding.collective.seq) == ("all_reduce", 4)
    call = finding.collective.by_rank[0].call
    assert (call.dtypes, call.shapes, call.elements) == ("Float", "4", 4)
    assert verdict.last[1][2].startswith("script.py:")
    assert verdict.last[1][2].endswith(" in <module>")
