"""NCCL's watchdog ends a rank after a timed-out collective; dumps name the missing rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_operator.job.failure.symptoms import last_words

from tests.ports import free_port
from tests.trainer.launcher.test_timed_out_collectives import explained_dumps
from tests.trainer.support.pods import until
from tests.trainer.support.worlds import world_job

pytestmark = [pytest.mark.timeout(600)]
PRELUDE = """
if generation == "1":
    import datetime
    from tests.trainer.gpu.sharing import share_gpu
    share_gpu(os.environ["RANK"])
    import torch
    from torch import distributed as dist
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=10))
    numbers = torch.ones(1 << 20, device="cuda")
    for _ in range(3):
        dist.all_reduce(numbers)
    torch.cuda.synchronize()
    if os.environ["RANK"] == "1":
        time.sleep(3600)
    dist.all_reduce(numbers)
    torch.cuda.synchronize()
"""


def test_the_missing_rank_is_named_after_another_one_has_ended(tmp_path: Path) -> None:
    port = {"MASTER_PORT": str(free_port())}
    with world_job(tmp_path, prelude=PRELUDE) as job:
        pods = [job.start(node_rank, local_world_size=1, variables=port) for node_rank in range(2)]
        try:
            pods[0].wait_to_listen()
            until(lambda: bool(pods[0].news(wait=1)["failures"]), "the watchdog to end rank 0")
            failure, *_ = pods[0].news()["failures"]
            assert last_words(failure["message"]).dumps
            hang = explained_dumps(pods, [[0], [1]])
        finally:
            print(*(pod.log for pod in pods), sep="\n")
        print(hang)
        sentence = "rank 1 did not enter all_reduce 4 of the default group; 1 rank waits"
        assert hang.sentence.startswith(sentence)
        assert hang.ranks == (1,)
        for node_rank, pod in enumerate(pods):
            assert pod.tell(2, node_rank)[0] == 200
        for pod in pods:
            pod.wait_for(2)
        job.finish()
        assert [pod.wait() for pod in pods] == [0, 0]
