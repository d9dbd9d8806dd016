"""Copies of snapshots are in other failure domains, as far as these have room."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from ddp_protocol.copies import Domain, copy_plan, order_by_domain, read_order
from hypothesis import given, settings
from hypothesis import strategies as st

LAYOUTS = 1000


def layout(random: Random) -> list[Domain]:
    """Return zone, block, sub-block, host and node of each pod, of uneven sizes, in any order."""
    levels: list[list[Domain]] = [[()]]
    for most in (2, random.choice([1, 3, 6]), 3, 3, 2):
        levels.append(
            [
                (*outer, None if random.random() < 0.1 else str(number))
                for outer in levels[-1]
                for number in range(random.randint(1, most))
            ]
        )
    nodes = levels[-1][: random.randint(1, 60)]
    pods = [node for node in nodes for _ in range(random.choice([1, 1, 1, 2]))]
    random.shuffle(pods)
    return pods


def lost(domains: list[Domain], holders: Sequence[Sequence[int]], gone: Domain) -> int:
    """Return how many snapshots have no copy outside a domain that has their owner."""
    is_gone = [domain[: len(gone)] == gone for domain in domains]
    return sum(
        is_gone[owner] and all(is_gone[holder] for holder in of_owner)
        for owner, of_owner in enumerate(holders)
    )


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_no_domain_can_lose_more_snapshots_than_the_others_lack_room_for(copies: int) -> None:
    random = Random(copies)
    larger = 0
    for _ in range(LAYOUTS):
        domains = layout(random)
        nodes = len(domains)
        plan = copy_plan(order_by_domain(domains), copies)
        made = min(copies, nodes - 1)
        sizes = Counter(domain[:level] for domain in domains for level in range(1, 6))
        for gone, size in sizes.items():
            room = (nodes - size) * made
            assert lost(domains, plan.holders, gone) == max(size - room, 0)
            larger += 0 < room < size
    assert larger > 100, "some domains have more snapshots than fit into the others"


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.integers(0, 8))
def test_each_pod_holds_as_many_copies_as_it_makes(blocks: list[int], copies: int) -> None:
    nodes = len(blocks)
    plan = copy_plan(order_by_domain([(str(block),) for block in blocks]), copies)
    for node_rank in range(nodes):
        holders, sources = plan.holders[node_rank], plan.sources[node_rank]
        assert len(set(holders) - {node_rank}) == len(holders) == min(copies, nodes - 1)
        assert len(set(sources)) == len(sources) == min(copies, nodes - 1)
        assert all(node_rank in plan.holders[source] for source in sources)


def test_copies_of_uneven_blocks_leave_the_block() -> None:
    blocks = "ccabbacbccba"  # as after replacements: 5, 4 and 3 pods, their ranks mixed
    plan = copy_plan(order_by_domain([(block,) for block in blocks]), 1)
    assert all(blocks[owner] != blocks[holder] for owner, [holder] in enumerate(plan.holders))


def test_copies_within_a_large_block_leave_the_sub_block() -> None:
    domains: list[Domain] = [("a", "1"), ("a", "2"), ("b", "1"), ("a", "1"), ("a", "2")]
    plan = copy_plan(order_by_domain(domains), 1)
    assert all(domains[owner] != domains[holder] for owner, [holder] in enumerate(plan.holders))
    assert sum(domains[holder][0] == "b" for [holder] in plan.holders) == 1


def test_ranks_that_follow_the_domains_stay_in_order() -> None:
    assert order_by_domain([("b", "1"), ("b", "2"), ("a", "2"), ("a", "1")]) == (0, 1, 2, 3)
    assert order_by_domain([("b",), ("a",), ("b",), ("a",)]) == (0, 2, 1, 3)
    assert order_by_domain([(None, "x"), ("a", "x"), (None, "x")]) == (0, 2, 1)
    assert order_by_domain([(), (), ()]) == (0, 1, 2)


@settings(max_examples=300)
@given(st.permutations(range(12)))
def test_any_order_is_read_from_its_text(order: list[int]) -> None:
    assert read_order(",".join(map(str, order)), 12) == tuple(order)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("0-2,5,3-4", (0, 1, 2, 5, 3, 4)),
        ("", None),
        ("0-4", None),
        ("0-5,0", None),
        ("0-4,4", None),
        ("0-6", None),
        ("0-9999999", None),
        ("1-5,0x", None),
        ("5-0", None),
        ("\u0660,1-5", None),
        ("-1,0-5", None),
    ],
)
def test_order_without_all_node_ranks_is_ignored(text: str, order: tuple[int, ...] | None) -> None:
    assert read_order(text, 6) == order
