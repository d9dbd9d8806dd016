import json

import pytest
from ddp_client.views.traces import as_dict, diagnosis
from ddp_operator.hang.traces import analyse, headline

from tests.unit.hang.traces.recorder import Call, Form, Ranks


def said(ranks: Ranks, *, without: tuple[int, ...] = ()) -> str:
    return headline(analyse(ranks.run().dumps(without=without)))


def four(*calls: Call) -> Ranks:
    return Ranks.same({"0": (0, 1, 2, 3), "1": (1, 2, 3)}, calls or [Call("0")] * 3)


def test_each_cause_has_a_headline() -> None:
    hangs = four()
    hangs.hosts[2] = 2
    assert said(hangs) == (
        "rank 2 did not enter all_reduce 3 of the default group; 3 ranks wait since 14:13:20"
    )
    assert said(hangs, without=(2,)) == (
        "rank 2 left no dump; 3 ranks wait in all_reduce 3 of the default group since 14:13:20"
    )
    larger = four(Call("1"))
    larger.programs[1] = [Call("1", size=7)]
    assert said(larger) == (
        "rank 1 entered all_reduce 1 of group 1 (GROUP_1) with Float 7, 2 ranks with Float 16"
    )
    other = four()
    other.programs[3] = [Call("0"), Call("0", "barrier")]
    assert said(other) == (
        "rank 3 entered barrier as collective 2 of the default group, 3 ranks entered all_reduce"
    )
    extra = four()
    extra.programs[0].append(Call("0"))
    assert said(extra) == (
        "only rank 0 entered all_reduce 4 of the default group, since 14:13:20; 3 ranks did not"
    )
    crossed = Ranks.same({"0": (0, 1), "1": (0, 1)}, [Call("0"), Call("1")])
    crossed.programs[1].reverse()
    assert said(crossed) == (
        "deadlock since 14:13:20: rank 0 in all_reduce 1 of the default group, rank 1 in "
        "all_reduce 1 of group 1 (GROUP_1); each waits for another"
    )
    assert said(four()) == "no rank waits in a collective, as 4 dumps show"


def test_evidence_names_tensors_stacks_and_missing_dumps() -> None:
    ranks = four()
    ranks.hosts[2] = 2
    verdict = analyse(ranks.run().dumps(without=(3,)))
    found = diagnosis(verdict, {"rank_3": "it is cut off"})
    assert found.evidence == [
        "2 of 4 ranks entered all_reduce 3 of the default group",
        "ranks 0-1: all_reduce Float 16",
        "rank 2 last entered all_reduce 2 of the default group, at train.py:20 in step",
        "2 of 3 ranks with a dump wait in an operation",
        "rank 3: no dump",
        "rank_3: it is cut off",
    ]
    assert found.remedies == [
        "find out where rank 2 is: kubectl ddp stacks NAME, the log, the node"
    ]


def test_stopped_device_is_evidence() -> None:
    ranks = Ranks.same({"0": (0, 1, 2)}, [Call("0")] * 4, ahead=1)
    ranks.blind, ranks.hosts = {1: 1}, {1: 3}
    found = diagnosis(analyse(ranks.run().dumps()), {})
    [stalled] = [each for each in found.evidence if "no completion" in each]
    assert stalled.startswith("rank 1 recorded no completion of all_reduce 2 of the default group")
    assert "look for Xid errors and hung kernels on the nodes of rank 1" in found.remedies


def test_json_has_the_place() -> None:
    ranks = four()
    ranks.hosts[2] = 2
    found = json.loads(json.dumps(as_dict(analyse(ranks.run().dumps()), {})))
    assert found["ranks"] == [2]
    assert found["findings"][0]["collective"]["sequence"] == 3
    assert found["last_operations"][0]["place"] == "train.py:20 in step"


@pytest.mark.parametrize("nanoseconds", [-5, 0, 2**62])
def test_headline_of_hostile_dumps_is_short_and_printable(nanoseconds: int) -> None:
    ranks = Ranks.same({"0\x1b[2J" + "x" * 300: (0, 1, 2)}, [Call("0\x1b[2J" + "x" * 300)] * 2)
    for program in ranks.programs.values():
        program[:] = [call._replace(name="\x1b]0;" + "y" * 300) for call in program]
    ranks.hosts[1] = 1
    ranks.at = nanoseconds
    verdict = analyse(ranks.run().dumps(Form()))
    assert len(headline(verdict)) <= 200
    assert headline(verdict).isprintable()
    assert all(line.isprintable() for line in diagnosis(verdict, {}).lines(80))
