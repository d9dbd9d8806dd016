"""Turns a pod's assignment into the environment variables of its ranks. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.process_group.assignment import Assignment
from ddp_trainer.settings.environment import Placement

GENERATION = "DDP_GENERATION"
"""Generation of the assignment in the environment; operators that send new assignments set it."""
HELD = "DDP_HELD"
"""1: ranks wait until the operator lets them start: other pods run the previous generation."""
HOLD_SECONDS = "DDP_HOLD_SECONDS"
"""How long ranks wait for an assignment from the operator; then they start with that of the
environment."""
SIZES = "DDP_POD_SIZES"
MEMBERS = "DDP_MEMBERS"
"""The pods of the group, for node rank 0. It is set if the operator lets node rank 0 restart the
group."""
_HOLD_DIGITS = 5
_REPLACEMENT = re.compile(r"-r\d+$")
"""Suffix of a replacement pod's name that its host name does not have."""
_ALONE = {"MASTER_ADDR": "localhost", "NODE_RANK": "0", "GROUP_WORLD_SIZE": "1"}


class RankEnvironment:
    """The environment of a pod's ranks under each assignment that the pod can have."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Read the environment that the pod was created with.

        Raises:
            ConfigurationError: a variable is missing, malformed or contradicts another.
        """
        can_change = all(env.get(name) for name in (GENERATION, "DDP_STATUS_PORT", "DDP_TOKEN"))
        self.can_change = can_change
        """True: the operator may send the pod another assignment."""
        waits = can_change and "NODE_RANK" not in env
        if waits:  # until it has an assignment, read it as if it were the only pod
            env = {**env, **_ALONE, "WORLD_SIZE": env.get("LOCAL_WORLD_SIZE", "")}
        self.placement = Placement.from_env(env)
        """Read from the environment; without an assignment, only the values common to all pods."""
        self.hold_seconds = _hold_seconds(env) if can_change else 0
        """How long to wait for another assignment before ranks start with the first one."""
        self._sizes_are_fixed = bool(env.get(SIZES))
        self._host = _REPLACEMENT.sub("", env.get("DDP_POD", ""))
        self.initial = Assignment(
            job_uid=self.placement.job_uid,
            attempt=self.placement.attempt,
            generation=self.placement.generation,
            node_rank=None if waits else self.placement.node_rank,
            nodes=len(self.placement.pod_sizes.sizes),
            master_addr=self.placement.master_addr,
            start=env.get(HELD) != "1" and not self.hold_seconds,
            members="" if waits else env.get(MEMBERS, ""),
        )
        """The assignment that the pod was created with."""

    def why_unfit(self, assignment: Assignment) -> str:
        """Return why the pod cannot take an assignment; empty: it can."""
        if assignment.host and self._host and assignment.host != self._host:
            return f"host: this is {self._host}"
        sizes = self.placement.pod_sizes.sizes
        if assignment.node_rank is None or not self._sizes_are_fixed:
            return ""
        if assignment.nodes != len(sizes):
            return f"nodes: {SIZES} says how many, {len(sizes)}"
        if sizes[assignment.node_rank] != self.placement.local_world_size:
            own = self.placement.local_world_size
            return (
                f"nodeRank: that pod of {SIZES} has {sizes[assignment.node_rank]} ranks, this {own}"
            )
        return ""

    def ranks(self, assignment: Assignment, *, by_name: bool) -> Mapping[int, Mapping[str, str]]:
        """Return the variables of each rank that the assignment gives to this pod, by rank.

        `by_name`: use the host name of node rank 0 as MASTER_ADDR even if its address is known.
        After a replacement, DNS may return the old pod's address for half a minute. Only ranks that
        form their group themselves can handle that.
        """
        if assignment.node_rank is None:
            return {}
        own_ranks, world_size = self.own_ranks(assignment.node_rank, nodes=assignment.nodes)
        common: Mapping[str, str] = {}
        if assignment is not self.initial:
            common = _variables(assignment, world_size=world_size, by_name=by_name)
        return {
            rank: {
                **common,
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                # For a torchrun below the launcher, each rank is a node with one process. So the
                # number of ranks is right even if several ranks of a pod start torchrun.
                "PET_NODE_RANK": str(rank),
                "PET_NNODES": str(world_size),
                "PET_NPROC_PER_NODE": "1",
            }
            for local_rank, rank in enumerate(own_ranks)
        }

    def own_ranks(self, node_rank: int, *, nodes: int) -> tuple[range, int]:
        """Return the ranks of this pod at a node rank, and the world size."""
        fixed = sum(self.placement.pod_sizes.sizes)
        world_size = fixed if self._sizes_are_fixed else nodes * self.placement.local_world_size
        return self.ranks_of(node_rank), world_size

    def ranks_of(self, node_rank: int) -> range:
        """Return the ranks of the pod that has a node rank."""
        own = self.placement.local_world_size
        if self._sizes_are_fixed:
            sizes = self.placement.pod_sizes
            first_rank = sizes.first_rank(node_rank)
            return range(first_rank, first_rank + sizes.sizes[node_rank])
        return range(node_rank * own, (node_rank + 1) * own)


def _hold_seconds(env: Mapping[str, str]) -> int:
    text = env.get(HOLD_SECONDS) or "0"
    if not (text.isdecimal() and len(text) <= _HOLD_DIGITS):
        raise ConfigurationError(f"{HOLD_SECONDS} is {text!r}: set it to a number of seconds")
    return int(text)


def _variables(assignment: Assignment, *, world_size: int, by_name: bool) -> Mapping[str, str]:
    """Return the variables of torch's `env://` and of torchrun, and our own."""
    node_rank, nodes = str(assignment.node_rank), str(assignment.nodes)
    master_addr = (
        assignment.master_addr if by_name else assignment.master_address or assignment.master_addr
    )
    return {
        "MASTER_ADDR": master_addr,
        "WORLD_SIZE": str(world_size),
        "NODE_RANK": node_rank,
        "GROUP_RANK": node_rank,
        "GROUP_WORLD_SIZE": nodes,
        "PET_MASTER_ADDR": master_addr,
        GENERATION: str(assignment.generation),
    }
