"""The cost of lost failure domains, compared with all possible losses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from random import Random

import pytest
from ddp_operator.api.values.text import in_ranges
from ddp_operator.job.status.failure_domains import LEVELS
from ddp_operator.job.status.protection import levels_of, protection
from ddp_protocol.copies import Domain, fingerprint, order_by_domain

from tests.unit.protocol.test_copies import layout

LAYOUTS = 300


def domains_of(random: Random) -> list[Domain]:
    """Return the domains of some pods at each level; the names of all nodes are known."""
    has_cliques = random.random() < 0.5
    return [
        (*place[:3], place[2] if has_cliques else None, place[3], str(place))
        for place in layout(random)[:24]
    ]


def held_by(order: Sequence[int], copies: int) -> dict[int, set[int]]:
    """Return the pods that hold each pod's snapshots, as the documentation explains it: a copy is a
    part of the order away.
    """
    count = len(order)
    copies = min(copies, count - 1)
    away = [number * count // (copies + 1) for number in range(copies + 1)]
    return {
        owner: {order[(at + distance) % count] for distance in away}
        for at, owner in enumerate(order)
    }


def is_lost(held: dict[int, set[int]], gone: set[int]) -> bool:
    return any(holders <= gone for holders in held.values())


@pytest.mark.parametrize("copies", [0, 1, 2, 3])
def test_survived_domains_are_those_whose_losses_leave_all_snapshots(copies: int) -> None:
    random = Random(copies)
    found = set()
    for _ in range(LAYOUTS):
        domains = domains_of(random)
        nodes = range(len(domains))
        follows = random.random() < 0.7
        order = order_by_domain(domains) if follows else tuple(nodes)
        levels = levels_of(
            tuple(domains), copies=copies, order=fingerprint(in_ranges(order)) if follows else ""
        )
        held = held_by(order, copies)
        assert levels is not None
        by_name = {level.name: level for level in levels}
        for at, name in enumerate(LEVELS):
            places = [domain[: at + 1] for domain in domains]
            names = set(places)
            if len(names) == 1 or any(place[-1] is None for place in places):
                assert name not in by_name
                continue
            level = by_name[name]
            assert level.domains == len(names)
            fatal, pairs = [], 0
            for lost in (*combinations(names, 1), *combinations(names, 2)):
                gone = {node_rank for node_rank in nodes if places[node_rank] in lost}
                if is_lost(held, gone):
                    fatal += [lost[0]] if len(lost) == 1 else []
                    pairs += len(lost) == 2
            assert sorted(level.fatal) == sorted((str(f[-1]), places.count(f)) for f in fatal)
            assert (level.survives >= 1) == (not fatal)
            assert (level.survives >= 2) == (not fatal and not pairs)
            found.add(min(level.survives, 2))
    assert found == set(range(min(copies, 2) + 1)), "all outcomes are among the layouts"


def blocks(text: str, *, copies: int = 1, replicated: bool = False, stored: int | None = 80) -> str:
    """Return the sentence about pods in these blocks, one letter each, with an own node each."""
    domains: list[Domain] = [
        (None, block, None, None, None, f"{block}{number}") for number, block in enumerate(text)
    ]
    order = fingerprint(in_ranges(order_by_domain(domains)))
    levels = levels_of(tuple(domains), copies=copies, order=order, replicated=replicated)
    assert levels is not None
    return protection(levels, pods=len(text), step=120, stored=stored)


COST = "can cost 40 steps, back to step 80 on storage"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            blocks("aabbcc"),
            f"losing any one block of 3 costs nothing; losing two blocks {COST}",
        ),
        (blocks("aabb"), f"losing any one block of 2 costs nothing; losing both blocks {COST}"),
        (
            blocks("aaabbbccc", copies=2),
            f"losing any two blocks of 3 costs nothing; losing all 3 blocks {COST}",
        ),
        (
            blocks("aaaab"),
            "losing any other block or any one node of 5 costs nothing; "
            f"losing block a (4 of 5 pods) or two nodes {COST}",
        ),
        (
            blocks("aabb", copies=2),
            "losing any one block of 2 or any two nodes of 4 costs nothing; "
            f"losing both blocks or three nodes {COST}",
        ),
        (blocks("aaaa", copies=0), f"losing any node of 4 {COST}"),
        (
            blocks("abcd", replicated=True),
            f"losing any three blocks of 4 costs nothing; losing all 4 blocks {COST}",
        ),
        (blocks("a"), f"losing the only node {COST}"),
        (
            blocks("ab", stored=None),
            "losing any one block of 2 costs nothing; losing both blocks can cost all 120 steps,"
            " because no checkpoint on storage is reported",
        ),
        (blocks("ab", stored=120), "losing all pods costs nothing, because step 120 is on storage"),
        (
            blocks("ab", stored=119),
            "losing any one block of 2 costs nothing; losing both blocks can cost 1 step, back "
            "to step 119 on storage",
        ),
    ],
)
def test_sentence_names_what_is_safe_and_what_it_costs_otherwise(said: str, sentence: str) -> None:
    assert said == sentence


def test_large_domains_are_named_briefly() -> None:
    text = blocks("".join(chr(ord("a") + n) * 4 for n in range(9)), copies=0)
    assert text == f"losing any node of 36 {COST}"
    domains: list[Domain] = [
        ("z" * 60 + str(n % 2), "b" * 300 + str(n), *"xxx", str(n)) for n in range(40)
    ]
    levels = levels_of(tuple(domains), copies=1, order="")
    assert levels is not None
    assert len(protection(levels, pods=40, step=10, stored=1)) < 512


def test_copies_by_another_order_are_not_known() -> None:
    domains: tuple[Domain, ...] = tuple((None,) * 5 + (name,) for name in "abab")
    assert levels_of(domains, copies=1, order="0123abcd") is None
    assert levels_of(domains, copies=1, order=None) is None
    in_order = levels_of(domains, copies=1, order="")
    assert in_order is not None
    assert [level.fatal for level in in_order] == [[("a", 2), ("b", 2)]]
    assert levels_of(domains, copies=1, order=fingerprint("0-3")) == in_order


def test_5000_pods_are_judged_once() -> None:
    domains = tuple((str(n % 7), str(n % 91), None, None, None, str(n)) for n in range(5000))
    order = fingerprint(in_ranges(order_by_domain(domains)))
    levels = levels_of(domains, copies=2, order=order)
    assert levels is not None
    assert levels_of((*domains[:1], *domains[1:]), copies=2, order=order) is levels
    text = protection(levels, pods=5000, step=9, stored=None)
    assert text.startswith("losing any two zones of 7 costs nothing; losing three zones can cost")
