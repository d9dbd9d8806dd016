"""The steps that a pod holds, from its files and its ranks' datagrams."""

from __future__ import annotations

from pathlib import Path

from ddp_trainer.launcher.memory.own_steps import Asked, Pod, incomplete_steps, own_steps
from ddp_trainer.launcher.memory.protocol.messages import RankReport
from ddp_trainer.launcher.memory.store import File
from ddp_trainer.memory.volume import Key, SnapshotName

POD = Pod(generation=2, ranks=range(2, 4), world_size=4)


def file(
    step: int,
    rank: int,
    *,
    generation: int = 2,
    world_size: int = 4,
    replicated: bool = False,
    local_rank: int | None = 0,
) -> File:
    name = SnapshotName(
        key=Key(generation, step), rank=rank, world_size=world_size, replicated=replicated
    )
    return File(path=Path(str(name)), name=name, size=8, local_rank=local_rank)


def report(
    rank: int, step: int, *, generation: int = 2, replicated: bool = False, refusal: str = ""
) -> RankReport:
    return RankReport(
        rank=rank,
        generation=generation,
        step=step,
        saved=not refusal,
        replicated=replicated,
        refusal=refusal,
    )


def after(*reports: RankReport) -> Asked:
    found = Asked(POD)
    for one in reports:
        found.note(one)
    return found


def test_a_step_is_held_once_all_ranks_of_the_pod_have_saved_it() -> None:
    files = [file(5, 2), file(5, 3), file(6, 2), file(7, 3, replicated=True)]
    held = own_steps(files, POD)
    assert {step: len(own.files) for step, own in held.items()} == {5: 2, 7: 1}
    assert (held[5].replicated, held[7].replicated) == (False, True)


def test_files_of_others_do_not_count() -> None:
    files = [
        file(5, 2),
        file(5, 3, generation=1),
        file(5, 3, world_size=5),
        file(5, 3, local_rank=None),
        file(5, 1),
        file(6, 3, local_rank=None, replicated=True),
    ]
    assert not own_steps(files, POD)


def test_a_step_counts_as_asked_for_when_the_last_rank_was_asked() -> None:
    assert after().step([]) is None
    assert after(report(2, 5)).step([]) is None
    assert after(report(2, 7), report(3, 5), report(3, 6)).step([]) == 6


def test_a_file_shows_that_its_rank_was_asked_if_the_datagram_is_lost() -> None:
    assert after(report(2, 7)).step([file(6, 3)]) == 6
    assert after().step([file(6, 2, replicated=True)]) == 6


def test_replicated_step_needs_one_rank() -> None:
    assert after(report(2, 5, replicated=True)).step([]) == 5
    assert after(report(2, 9), report(2, 5, replicated=True)).step([]) == 5


def test_reports_of_other_generations_and_ranks_are_ignored() -> None:
    others = [report(2, 9, generation=1), report(3, 9, generation=3), report(1, 9), report(4, 9)]
    assert after(*others).step([]) is None
    assert after(report(2, 2**63), report(3, 5)).step([]) is None


def test_refusal_is_reported_until_the_rank_can_save() -> None:
    found = after(report(3, 5, refusal="too large" + "x" * 300))
    assert found.refusal.startswith("too large")
    assert len(found.refusal) == 200
    found.note(report(3, 6))
    assert not found.refusal


def test_a_step_that_one_rank_skipped_is_useless() -> None:
    files = [file(5, 2), file(5, 3), file(6, 2), file(8, 3)]
    assert incomplete_steps(files, POD, asked=None) == set()
    assert incomplete_steps(files, POD, asked=5) == set()
    assert incomplete_steps(files, POD, asked=7) == {Key(2, 6)}
    assert incomplete_steps([file(6, 2, replicated=True)], POD, asked=7) == set()
