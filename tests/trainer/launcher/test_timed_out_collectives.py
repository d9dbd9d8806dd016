"""After a collective that timed out, the dumps of the ended ranks name the missing one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ddp_operator.hang.evidence import explain_answers
from ddp_operator.hang.result import NOTHING_KNOWN, Hang
from ddp_operator.job.failure.symptoms import is_of_another_rank, last_words

from tests.trainer.support.pods import until
from tests.trainer.support.worlds import WorldJob, WorldPod, world_job
from tests.unit.hang.traces.recorder import Call, Ranks

MISSING = 3
PRELUDE = """
rank, prefix = int(os.environ["RANK"]), os.environ["TORCH_FR_DUMP_TEMP_FILE"]
if generation == "1":
    pathlib.Path(f"{prefix}{rank}").write_bytes((folder / f"dump-{rank}").read_bytes())
    (folder / f"written-{rank}").touch()
    if rank != 3:
        while not all((folder / f"written-{each}").exists() for each in range(4)):
            time.sleep(0.01)
        print("[rank0]: Watchdog caught collective operation timeout", file=sys.stderr)
        os.abort()
"""
"""Rank 3 continues, like a rank that computes for too long."""


def written(folder: Path, *, missing: bytes | None = None) -> None:
    run = Ranks.same({"0": (0, 1, 2, 3)}, [Call("0")] * 2)
    run.hosts = {MISSING: 1}
    run.run()
    for rank in range(4):
        (folder / f"dump-{rank}").write_bytes(run.dump(rank))
    if missing is not None:
        (folder / f"dump-{MISSING}").write_bytes(missing)


def begun(job: WorldJob) -> Sequence[WorldPod]:
    return [job.start(node_rank, nodes=2, local_world_size=2) for node_rank in range(2)]


def explained(pods: Sequence[WorldPod]) -> Hang:
    """Wait until both pods report dumps, and read them as the operator does."""
    pods[0].wait_to_listen()

    def messages() -> list[str]:
        return [each["message"] for each in pods[0].news(wait=1)["failures"]]

    until(lambda: len(messages()) == 2, "both pods to report the failure")
    for message in messages():
        assert last_words(message).dumps
        assert is_of_another_rank(last_words(message).text)
    return explained_dumps(pods, ((0, 1), (2, 3)))


def explained_dumps(pods: Sequence[WorldPod], ranks: Sequence[Sequence[int]]) -> Hang:
    """Read the dumps of pods with these ranks, as the operator does."""
    answers = [pod.request("GET", "/traces") for pod in pods]
    assert [status for status, _ in answers] == [200] * len(pods)
    return explain_answers(
        (own, json.dumps(answer).encode()) for own, (_, answer) in zip(ranks, answers, strict=True)
    )


def test_the_missing_rank_is_named_after_all_ranks_have_ended(tmp_path: Path) -> None:
    written(tmp_path)
    with world_job(tmp_path, prelude=PRELUDE) as job:
        pods = begun(job)
        hang = explained(pods)
        sentence = "rank 3 did not enter all_reduce 2 of the default group; 3 ranks wait since"
        assert hang.sentence.startswith(sentence)
        assert (hang.ranks, hang.kind) == ((MISSING,), "script")
        for pod in pods:
            assert pod.tell(2, pods.index(pod))[0] == 200
        for pod in pods:
            pod.wait_for(2)
            _, answer = pod.request("GET", "/traces")
            assert [each["trace"] for each in answer["ranks"]] == [None, None]
        job.finish()
        assert [pod.wait() for pod in pods] == [0, 0]


def test_malicious_dump_of_the_missing_rank_names_none(tmp_path: Path) -> None:
    """`test_dumps` has files that are not read."""
    written(tmp_path, missing=b"\x80\x02cposix\nsystem\n.")
    with world_job(tmp_path, prelude=PRELUDE) as job:
        assert explained(begun(job)) == NOTHING_KNOWN
