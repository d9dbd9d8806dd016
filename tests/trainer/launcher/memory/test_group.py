"""Several pods keep, copy and restore snapshots together."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from ddp_protocol.copies import fingerprint, order_by_domain
from ddp_trainer.memory.volume import FREE, PART, Key

from tests.trainer.launcher.memory.files import flip, names_in, snapshot
from tests.trainer.launcher.memory.network import SimulatedJob, without_threads


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    without_threads(monkeypatch)


def job(folder: Path, **settings: int) -> SimulatedJob:
    found = SimulatedJob(folder, **settings)  # type: ignore[arg-type]
    found.restart()
    assert found.check_restored() is None
    return found


def test_complete_step_is_copied_and_releases_the_one_before(tmp_path: Path) -> None:
    four = job(tmp_path, nodes=4, local_world_size=2)
    four.step(5)
    four.step(6)
    assert four.complete() == 6
    for node_rank, pod in enumerate(four.pods):
        source = (node_rank + 2) % 4
        ranks = [*pod.ranks, 2 * source, 2 * source + 1]
        expected = {str(snapshot(6, rank, world_size=8)) for rank in ranks}
        assert names_in(pod.memory.store) == expected
        assert [path.name for path in pod.volume.directory.glob("own/*/free")] == ["free"] * 2


def test_all_restart_in_place_from_what_they_have(tmp_path: Path) -> None:
    two = job(tmp_path, nodes=2, local_world_size=2)
    two.step(5)
    two.step(6)
    two.restart()
    assert two.check_restored() == 6
    own = [path for pod in two.pods for path in pod.restored().paths.values()]
    assert {path.parent.parent.name for path in own} == {"own"}, "nothing is fetched"


@pytest.mark.parametrize("lost", [0, 2])
def test_a_replaced_pod_fetches_what_its_ranks_need(tmp_path: Path, lost: int) -> None:
    three = job(tmp_path, nodes=3, local_world_size=2)
    three.step(5)
    three.pods[lost] = three.create()
    three.restart()
    assert three.check_restored() == 5
    paths = three.pods[lost].restored().paths.values()
    assert {path.parent.name for path in paths} == {"restored"}
    three.step(1)
    assert three.complete() == 1
    assert not [*three.pods[lost].volume.restored.iterdir()]
    assert three.leader.news().restored.step == 5  # type: ignore[union-attr]


def test_restored_snapshots_are_copied_again_before_the_next_save(tmp_path: Path) -> None:
    three = job(tmp_path, nodes=3, local_world_size=2)
    three.step(5)
    for lost in (0, 1, 2, 1):
        three.pods[lost] = three.create()
        three.restart()
        assert three.check_restored() == 5
        three.settle()
        assert three.fewest_copies(Key(1, 5)) == 1
        assert three.complete() is None, "only steps of this generation become complete"


def test_copy_of_a_restored_snapshot_may_be_given_up(tmp_path: Path) -> None:
    two = job(tmp_path)
    two.step(5)
    two.pods[1] = two.create()
    two.restart()
    two.pods[0].turn()  # it learns where copies go
    two.pods[0].turn()
    [copy] = two.pods[0].wanted()
    two.pods[0].memory.copying._given_up[copy.name.key] = "node rank 1 did not take it"
    two.settle()
    assert two.check_restored() == 5, "it stays"
    assert "did not take it" in (two.leader.news().refusal or "")  # type: ignore[union-attr]
    two.step(1)
    assert two.complete() == 1
    assert not two.leader.news().refusal  # type: ignore[union-attr]


def test_more_pods_can_be_lost_than_have_copies_if_state_is_replicated(tmp_path: Path) -> None:
    four = job(tmp_path, nodes=4, local_world_size=2, replicated=True)
    four.step(5)
    assert four.complete() == 5
    assert not [*tmp_path.glob("*/copies/*")]
    four.pods = [four.create(), four.pods[2]]
    four.restart()
    assert four.check_restored() == 5
    four.step(6)
    assert four.complete() == 6


def test_sharded_snapshots_need_the_same_number_of_ranks(tmp_path: Path) -> None:
    three = job(tmp_path, nodes=3)
    three.step(5)
    three.pods.pop()
    three.restart()
    assert three.check_restored() is None
    [reason] = {pod.restored().reason for pod in three.pods}
    assert reason == "the snapshots of step 5 are of 3 ranks, not 2"
    three.step(1)
    assert three.complete() == 1


def test_lost_snapshots_are_not_restored_in_part(tmp_path: Path) -> None:
    four = job(tmp_path, nodes=4)
    four.step(5)
    four.pods[0], four.pods[2] = four.create(), four.create()
    four.restart()
    assert four.check_restored() is None
    assert four.pods[1].restored().reason == "step 5, the newest, has no snapshot of ranks 0, 2"


def test_a_rank_that_stays_in_the_next_generation_finishes_its_save(tmp_path: Path) -> None:
    one = job(tmp_path, nodes=1, copies=0)
    pod = one.pods[0]
    part = pod.volume.own(0) / PART
    part.parent.mkdir(parents=True)
    part.touch()
    pod.memory.begin(pod.world.assignment, ranks_ended=False)
    assert part.exists()
    pod.memory.begin(pod.world.assignment, ranks_ended=True)
    assert [path.name for path in part.parent.iterdir()] == [FREE]


def in_blocks(blocks: str) -> str:
    """Return the order for copies of pods in these blocks, by node rank."""
    return ",".join(map(str, order_by_domain([(block,) for block in blocks])))


def test_any_block_can_be_lost_in_the_least_room(tmp_path: Path) -> None:
    blocks = "aabbbbcccabc"
    for lost in "abc":
        size = 1000 * 2 * 2
        twelve = job(tmp_path / lost, nodes=12, size=size)
        twelve.step(4)
        twelve.reorder(in_blocks(blocks))
        twelve.step(5)
        assert twelve.complete() == 5
        twelve.pods = [
            twelve.create() if block == lost else pod
            for block, pod in zip(blocks, twelve.pods, strict=True)
        ]
        twelve.restart()
        assert twelve.check_restored() == 5
        twelve.step(6)
        assert twelve.complete() == 6


def test_new_order_moves_copies_with_the_next_step(tmp_path: Path) -> None:
    four = job(tmp_path, nodes=4, size=1000 * 2 * 2)
    four.step(5)
    for pod in four.pods:
        pod.save(0, 6)
    four.pods[0].turn()
    four.pods[0].memory.copying.attempt(four.pods[0].wanted()[0])
    four.reorder("0,2,1,3")
    four.settle()
    assert four.complete() == 5, "a step is not copied to two places"
    assert not any(pod.memory.store.find(snapshot(6, 0, world_size=4)) for pod in four.pods)
    four.step(7)
    assert four.complete() == 7
    for owner, holder in enumerate((1, 0, 3, 2)):
        assert four.pods[holder].memory.store.find(snapshot(7, owner, world_size=4))
    four.reorder("0,2,1,3")
    assert not four.pods[0].group.leading.completeness.dead()  # type: ignore[union-attr]


def test_the_news_name_the_order_by_which_the_complete_step_was_copied(tmp_path: Path) -> None:
    def order() -> str | None:
        news = four.leader.news()
        assert news is not None
        return news.copy_order

    four = job(tmp_path, nodes=4)
    assert order() is None
    four.step(5)
    assert order() == ""
    four.reorder("0,2,1,3")
    four.settle()
    assert order() == "", "its copies stay in their places"
    four.step(6)
    assert order() == fingerprint("0,2,1,3")
    four.pods[3] = four.create()
    four.restart()
    assert four.check_restored() == 6
    assert order() is None, "a pod with copies was replaced"
    four.step(7)
    assert order() == fingerprint("0,2,1,3")
    four.reorder("0-2")
    four.step(8)
    assert order() == "", "this order does not fit the group"


@pytest.mark.parametrize("replicated", [False, True])
def test_the_news_tell_whether_each_pod_has_the_whole_state(
    tmp_path: Path, replicated: bool
) -> None:
    two = job(tmp_path, replicated=replicated)
    two.step(5)
    news = two.leader.news()
    assert news is not None
    assert (news.step, news.replicated) == (5, replicated)


def test_restored_copies_move_to_another_block_before_the_next_save(tmp_path: Path) -> None:
    four = job(tmp_path, nodes=4, size=1000 * 2 * 2)
    four.step(5)
    four.pods[3] = four.create()
    four.copy_order = in_blocks("abba")
    four.restart()
    assert four.check_restored() == 5
    four.settle()
    for owner, holder in enumerate((1, 0, 3, 2)):
        assert four.pods[holder].memory.store.find(snapshot(5, owner, world_size=4))
    four.step(6)
    assert four.complete() == 6, "older places are released for it"


def test_order_that_does_not_fit_the_group_is_ignored(tmp_path: Path) -> None:
    four = job(tmp_path, nodes=4)
    four.reorder("0-2")
    four.step(5)
    assert four.complete() == 5
    assert four.pods[2].memory.store.find(snapshot(5, 0, world_size=4))


def test_rank_that_moved_to_its_copy_leaves_room_for_copies(tmp_path: Path) -> None:
    two = job(tmp_path, size=1000 * 2 * 2)
    two.step(5)
    two.pods = [two.pods[1], two.create()]
    two.restart()
    assert two.check_restored() == 5
    two.step(6)
    assert two.complete() == 6


def test_damaged_copy_is_refused_and_the_next_one_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(1)
    for number in range(20):
        three = job(tmp_path / str(number), nodes=3, copies=2)
        three.step(5)
        name = snapshot(5, 2, world_size=3)
        flip(three.pods[0].volume.received / str(name), random)
        three.pods[2] = three.create()
        caplog.clear()
        three.restart()
        assert three.check_restored() == 5, "to the bit"
        assert f"{name}: not used: the copy in job-0 is damaged" in caplog.text
        assert f"the copy {name} was damaged in this pod: released it" in caplog.text
        assert three.pods[0].memory.store.find(name) is None
        three.settle()
        assert three.fewest_copies(Key(1, 5)) == 2, "it is copied again"


def test_only_copy_that_is_damaged_is_not_tried_again(tmp_path: Path) -> None:
    two = job(tmp_path)
    two.step(5)
    flip(two.pods[0].volume.received / str(snapshot(5, 1)), Random(1))
    two.pods[1] = two.create()
    two.restart()
    failed = two.pods[1].restored()
    assert failed.failed
    assert "all copies of 1-5-1-2-sharded.snapshot are damaged: the copy in job-0" in failed.reason
    two.restart()
    assert two.check_restored() is None
    two.step(1)
    assert two.complete() == 1


def test_rank_that_moved_to_a_damaged_copy_fetches_another(tmp_path: Path) -> None:
    three = job(tmp_path, nodes=3, copies=2)
    three.step(5)
    flip(three.pods[0].volume.received / str(snapshot(5, 1, world_size=3)), Random(1))
    three.pods = [three.pods[1], three.pods[0], three.pods[2]]
    three.restart()
    assert three.check_restored() == 5
