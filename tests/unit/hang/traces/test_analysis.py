import json
import pickle
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from ddp_operator.hang.traces import TraceAnalysis, analyse, headline
from ddp_operator.hang.traces.records import Op
from hypothesis import assume, given

from tests.unit.hang.traces.recorder import BEGIN_NS, Call, Form, Ranks, read

NAMES = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", "all_to_all")
FORMS = st.builds(
    Form,
    only_active=st.booleans(),
    buffer=st.sampled_from([6, 2000]),
    as_json=st.booleans(),
    status=st.booleans(),
)

WITH_COUNTS = FORMS.filter(lambda form: form.status)


@st.composite
def programs(draw: Any, names: tuple[str, ...] = NAMES) -> Ranks:
    """Random collectives of the default group and up to four others, of three to six ranks."""
    size = draw(st.integers(3, 6))
    everyone = tuple(range(size))
    groups = {"0": everyone}
    for index in range(draw(st.integers(0, 4))):
        members = draw(st.sets(st.sampled_from(everyone), min_size=2))
        groups[str(index + 1)] = tuple(sorted(members))
    calls = st.tuples(
        st.sampled_from([*groups]), st.sampled_from(names), st.sampled_from([16, 32, 64])
    )
    program = [Call(*call) for call in draw(st.lists(calls, min_size=3, max_size=25))]
    return Ranks.same(groups, program, ahead=draw(st.integers(0, 3)))


def one_rank(ranks: Ranks, data: st.DataObject) -> tuple[int, int]:
    """Choose a rank and one of its operations."""
    rank = data.draw(st.sampled_from([r for r, calls in ranks.programs.items() if calls]))
    return rank, data.draw(st.integers(0, len(ranks.programs[rank]) - 1))


def calls(ranks: Ranks, rank: int) -> list[tuple[str, str, int]]:
    """Return the calls of a rank with their sequence numbers."""
    seqs: Counter[str] = Counter()
    found = []
    for call in ranks.programs[rank]:
        seqs[call.group] += 1
        found.append((call.group, call.name, seqs[call.group]))
    return found


def named(verdict: TraceAnalysis) -> list[int]:
    return [*verdict.ranks]


@given(programs(), FORMS)
def test_nobody_is_named_if_all_completed(ranks: Ranks, form: Form) -> None:
    verdict = analyse(ranks.run().dumps(form))
    assert [finding.kind for finding in verdict.findings] == ["no-wait"]
    assert not named(verdict)
    assert not verdict.stalled


@given(programs(), FORMS, st.data())
def test_a_host_that_hangs_is_named(ranks: Ranks, form: Form, data: st.DataObject) -> None:
    rank, at = one_rank(ranks, data)
    ranks.hosts[rank] = at
    verdict = analyse(ranks.run().dumps(form))
    assert named(verdict) == [rank]
    [finding] = verdict.findings
    found = finding.collective
    assert found is not None
    # The root of a broadcast may be done with it: then only the recorder's counts tell.
    hidden = not form.status and found.name in ("broadcast", "all_to_all")
    assert finding.kind == "missing" or (hidden and finding.kind == "unseen")
    rest = calls(ranks, rank)[at:]
    assert (found.group, found.name, found.seq) in rest
    if len(ranks.groups) == 1:
        assert (found.group, found.name, found.seq) == rest[0]
    for waiting in finding.waiting:
        entered = calls(ranks, waiting)[: len(ranks.entries[waiting])]
        assert (found.group, found.name, found.seq) in entered


@given(programs(), FORMS, st.data())
def test_rank_without_a_dump_is_unseen(ranks: Ranks, form: Form, data: st.DataObject) -> None:
    rank, at = one_rank(ranks, data)
    ranks.hosts[rank] = at
    verdict = analyse(ranks.run().dumps(form, without=[rank]))
    assert verdict.absent == (rank,)
    assert [(finding.kind, finding.ranks) for finding in verdict.findings] == [("unseen", (rank,))]


@given(programs(), FORMS, st.data())
def test_missing_dumps_name_nobody_else(ranks: Ranks, form: Form, data: st.DataObject) -> None:
    rank, at = one_rank(ranks, data)
    ranks.hosts[rank] = at
    absent = data.draw(st.sets(st.sampled_from([r for r in ranks.programs if r != rank])))
    verdict = analyse(ranks.run().dumps(form, without=[*absent]))
    assert set(named(verdict)) <= {rank, *absent}
    assert all(finding.kind in ("missing", "unseen", "no-wait") for finding in verdict.findings)


@given(programs(), FORMS, st.data(), st.sampled_from(["size", "name", "dtype"]))
def test_rank_with_another_call_is_named(
    ranks: Ranks, form: Form, data: st.DataObject, what: str
) -> None:
    rank, at = one_rank(ranks, data)
    call = ranks.programs[rank][at]
    assume(call.name != "all_to_all" and len(ranks.groups[call.group]) > 2)
    changed = {
        "size": call._replace(size=7),
        "name": call._replace(name="barrier"),
        "dtype": call._replace(dtype="Half"),
    }
    ranks.programs[rank][at] = changed[what]
    verdict = analyse(ranks.run().dumps(form))
    assert [(finding.kind, finding.ranks) for finding in verdict.findings] == [
        ("mismatch", (rank,))
    ]


@given(programs(), WITH_COUNTS, st.data())
def test_a_device_that_stops_is_named(ranks: Ranks, form: Form, data: st.DataObject) -> None:
    rank, at = one_rank(ranks, data)
    ranks.blind[rank] = at
    ranks.hosts[rank] = data.draw(st.integers(at, len(ranks.programs[rank])))
    verdict = analyse(ranks.run().dumps(form))
    assert set(named(verdict)) <= {rank}
    if ranks.hosts[rank] < len(ranks.programs[rank]):
        assert named(verdict) == [rank]


@given(programs(NAMES[:3]), st.sampled_from([Form(), Form(as_json=True, status=False)]), st.data())
def test_an_older_dump_names_nobody(ranks: Ranks, form: Form, data: st.DataObject) -> None:
    early = Ranks(ranks.groups, ranks.programs, ranks.ahead).run(data.draw(st.integers(0, 20)))
    rank, _ = one_rank(ranks, data)
    # After all operations, a rank looks as if its device had stopped in the last one.
    assume(len(early.entries[rank]) < len(ranks.programs[rank]))
    verdict = analyse(ranks.run().dumps(form) | {rank: early.dumps(form)[rank]})
    assert not named(verdict)


@pytest.mark.parametrize("backend", ["nccl", "gloo", "rccl"])
def test_rank_that_skips_a_collective_is_named(backend: str) -> None:
    ranks = Ranks.same({"0": (0, 1, 2, 3)}, [Call("0")] * 5)
    del ranks.programs[2][3]
    [finding] = analyse(ranks.run().dumps(Form(backend=backend))).findings
    assert (finding.kind, finding.ranks, finding.waiting) == ("missing", (2,), (0, 1, 3))


def test_rank_with_an_extra_collective_is_named() -> None:
    ranks = Ranks.same({"0": (0, 1, 2, 3)}, [Call("0")] * 5)
    ranks.programs[2].append(Call("0"))
    [finding] = analyse(ranks.run().dumps()).findings
    assert (finding.kind, finding.ranks, finding.waiting) == ("alone", (2,), (0, 1, 3))


def test_two_ranks_that_hang_are_named_among_many_groups() -> None:
    groups = {"0": (0, 1, 2, 3, 4, 5, 6, 7), "1": (0, 1, 2, 3), "2": (4, 5, 6, 7)}
    groups |= {"3": (0, 4), "4": (1, 5), "5": (2, 6), "6": (3, 7)}
    layer = [Call(name, "all_to_all") for name in "12"] + [Call(name) for name in "3456"]
    ranks = Ranks.same(groups, [*layer, Call("0")] * 4, ahead=2)
    ranks.hosts = {5: 6, 6: 6}
    [finding] = analyse(ranks.run().dumps(Form(only_active=True))).findings
    assert (finding.kind, finding.ranks) == ("missing", (5, 6))
    assert finding.collective is not None
    assert (finding.collective.group, finding.collective.seq) == ("2", 3)


def test_a_device_that_stopped_is_shown_beside_the_rank_that_is_missing() -> None:
    ranks = Ranks.same({"0": (0, 1, 2, 3), "1": (2, 3)}, [Call("0"), Call("1")] * 6, ahead=2)
    ranks.blind, ranks.hosts = {0: 2, 2: 5}, {0: 4}
    verdict = analyse(ranks.run().dumps(Form(only_active=True)))
    assert named(verdict) == [0]
    assert {rank: c.seq for rank, c in verdict.stalled.items()} == {0: 3, 2: 3}


@pytest.mark.parametrize("ahead", [0, 1])
def test_two_groups_in_different_order_are_a_deadlock(ahead: int) -> None:
    ranks = Ranks.same({"0": (0, 1), "1": (0, 1)}, [Call("0"), Call("1")], ahead=ahead)
    ranks.programs[1].reverse()
    [finding] = analyse(ranks.run().dumps()).findings
    assert (finding.kind, finding.ranks) == ("deadlock", (0, 1))
    assert finding.collective is not None
    assert {finding.collective.group, *(each.group for each in finding.others)} == {"0", "1"}


def test_minority_of_a_deadlock_is_named() -> None:
    ranks = Ranks.same({"0": (0, 1, 2, 3), "1": (0, 1, 2, 3)}, [Call("0"), Call("1")])
    ranks.programs[3].reverse()
    [finding] = analyse(ranks.run().dumps()).findings
    assert (finding.kind, finding.ranks, finding.waiting) == ("deadlock", (3,), (0, 1, 2, 3))


def test_ranks_that_differ_without_a_majority_are_all_named() -> None:
    ranks = Ranks.same({"0": (0, 1)}, [Call("0")])
    ranks.programs[1] = [Call("0", size=8)]
    [finding] = analyse(ranks.run().dumps()).findings
    assert (finding.kind, finding.ranks, finding.waiting) == ("mismatch", (0, 1), ())


def test_operations_behind_a_common_wait_are_no_deadlock() -> None:
    ranks = Ranks.same({"0": (0, 1, 2), "1": (0, 1, 2)}, [Call("0"), Call("1")] * 2).run()
    for entries in ranks.entries.values():
        for entry in entries[2:]:
            entry.done = False
    [finding] = analyse(ranks.dumps()).findings
    assert (finding.kind, finding.ranks) == ("nobody", ())
    assert finding.collective is not None
    assert (finding.collective.group, finding.collective.seq) == ("0", 2)


def test_older_dump_is_not_named_beside_a_hanging_rank() -> None:
    program = [Call("0")] * 5
    early = Ranks.same({"0": (0, 1, 2, 3)}, program[:2]).run()
    late = Ranks.same({"0": (0, 1, 2, 3)}, program)
    late.hosts[2] = 4
    verdict = analyse(late.run().dumps() | {1: early.dumps()[1]})
    assert (named(verdict), verdict.older) == ([2], (1,))


def test_common_wait_is_the_cause_of_other_waits() -> None:
    ranks = Ranks.same({"0": (0, 1, 2, 3), "1": (0, 1)}, [Call("1"), Call("0")])
    ranks.hosts = {0: 1, 1: 1}
    ranks.run()
    for rank in (0, 1):
        ranks.entries[rank][0].done = False
    [finding] = analyse(ranks.dumps()).findings
    assert (finding.kind, finding.ranks, finding.waiting) == ("nobody", (), (0, 1))


def test_order_of_operations_outranks_clocks() -> None:
    ranks = Ranks.same({"0": (0, 1, 2), "1": (0, 1)}, [Call("1"), Call("0")])
    ranks.hosts = {0: 0}
    ranks.run().entries[1][0].created_ns += 10**9
    [finding] = analyse(ranks.dumps()).findings
    assert (finding.kind, finding.ranks, finding.waiting) == ("missing", (0,), (1,))


def test_a_kernel_that_has_not_started_names_its_rank() -> None:
    ranks = Ranks.same({"0": (0, 1, 2)}, [Call("0")]).run()
    contents = {rank: json.loads(ranks.dump(rank, Form(as_json=True))) for rank in range(3)}
    for rank, content in contents.items():
        content["entries"][0] |= {"state": "scheduled" if rank == 1 else "started"}
    [finding] = analyse({r: read(json.dumps(c).encode()) for r, c in contents.items()}).findings
    assert (finding.kind, finding.ranks, finding.waiting) == ("incomplete", (1,), (0, 1, 2))


def transfer(record: int, name: str, *, seq: int = 1, done: bool = False) -> dict[str, Any]:
    return {
        "record_id": record,
        "pg_id": 0,
        "process_group": ("1", "PIPELINE"),
        "collective_seq_id": 0,
        "p2p_seq_id": seq,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": BEGIN_NS + record,
        "state": "completed" if done else "scheduled",
        "is_p2p": True,
    }


def pipeline(entries: dict[int, list[dict[str, Any]]]) -> TraceAnalysis:
    """Return the verdict about ranks 4, 5 and 7, which are 0, 1 and 2 in their group."""
    config = {"1": {"name": "1", "desc": "PIPELINE", "ranks": "[4, 5, 7]"}}
    return analyse(
        {
            rank: read(pickle.dumps({"version": "2.9", "pg_config": config, "entries": own}))
            for rank, own in entries.items()
        }
    )


def test_missing_sender_is_named_by_its_global_rank() -> None:
    verdict = pipeline({4: [transfer(0, "recv 0<-1")], 5: [transfer(0, "recv 1<-2")], 7: []})
    [finding] = verdict.findings
    assert (finding.kind, finding.ranks, finding.waiting) == ("missing", (7,), (5,))
    assert verdict.waiting == (4, 5)
    assert headline(verdict) == (
        "rank 7 did not enter the send for the recv of rank 5 in group 1 (PIPELINE); 1 rank waits "
        "since 14:13:20"
    )


def test_matching_transfers_name_nobody() -> None:
    met = {4: [transfer(0, "recv 0<-1")], 5: [transfer(0, "send 1->0", seq=9)], 7: []}
    assert not named(pipeline(met))


def test_transfers_of_a_block_are_done_when_it_ends() -> None:
    block = [
        transfer(0, "send 0->1"),
        transfer(1, "recv 0<-1"),
        transfer(2, "coalesced", done=True),
    ]
    assert [op.done for op in pipeline_ops(block)] == [True, True]
    block[2]["state"] = "scheduled"
    assert [op.done for op in pipeline_ops(block)] == [False, False]
    # A dump of the active operations lacks the end of a block that has completed.
    assert [op.done for op in pipeline_ops(block[:2])] == [True, True]


def pipeline_ops(entries: list[dict[str, Any]]) -> list[Op]:
    return read(pickle.dumps({"version": "2.9", "entries": entries})).groups["1"].transfers
