"""What a pod's place means to its ranks: the variables that they start with. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.process_group.assignment import Assignment
from ddp_trainer.settings.environment import Placement

GENERATION = "DDP_GENERATION"
"""Of the place that the environment describes; operators that tell pods of others set it."""
HELD = "DDP_HELD"
"""Whether ranks are not to start before the pod is told so, since others run what came before."""
HOLD_SECONDS = "DDP_HOLD_SECONDS"
"""How long ranks wait for the operator to say which of them run in this pod; then they start as the
environment has it."""
SIZES = "DDP_POD_SIZES"
MEMBERS = "DDP_MEMBERS"
"""The pods of the group, for that of node rank 0: an operator that accepts what its launcher leads
sets it."""
_HOLD_DIGITS = 5
_REPLACEMENT = re.compile(r"-r\d+$")
"""What a pod's name has more than its host name."""
_ALONE = {"MASTER_ADDR": "localhost", "NODE_RANK": "0", "GROUP_WORLD_SIZE": "1"}


class RankEnvironment:
    """The places that a pod of this environment can have."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Read what the pod was made with.

        Raises:
            ConfigurationError: a variable is missing, malformed or contradicts another.
        """
        can_change = all(env.get(name) for name in (GENERATION, "DDP_STATUS_PORT", "DDP_TOKEN"))
        self.can_change = can_change
        """Whether the operator may tell the pod of another one."""
        waits = can_change and "NODE_RANK" not in env
        if waits:  # until it is told of a place, it is read as if it were alone
            env = {**env, **_ALONE, "WORLD_SIZE": env.get("LOCAL_WORLD_SIZE", "")}
        self.placement = Placement.from_env(env)
        """That of the environment; of a pod without a place, only what all pods have in common."""
        self.hold_seconds = _hold_seconds(env) if can_change else 0
        """How long to wait for another place before ranks start in the first one."""
        self._sizes_are_fixed = bool(env.get(SIZES))
        self._host = _REPLACEMENT.sub("", env.get("DDP_POD", ""))
        self.born = Assignment(
            job_uid=self.placement.job_uid,
            attempt=self.placement.attempt,
            generation=self.placement.generation,
            node_rank=None if waits else self.placement.node_rank,
            nodes=len(self.placement.pod_sizes.sizes),
            master_addr=self.placement.master_addr,
            start=env.get(HELD) != "1" and not self.hold_seconds,
            members="" if waits else env.get(MEMBERS, ""),
        )
        """The place that the pod was made with."""

    def misfit(self, place: Assignment) -> str:
        """Why the pod cannot have a place; empty: it can."""
        if place.host and self._host and place.host != self._host:
            return f"host: this is {self._host}"
        sizes = self.placement.pod_sizes.sizes
        if place.node_rank is None or not self._sizes_are_fixed:
            return ""
        if place.nodes != len(sizes):
            return f"nodes: {SIZES} says how many, {len(sizes)}"
        if sizes[place.node_rank] != self.placement.local_world_size:
            own = self.placement.local_world_size
            return f"nodeRank: that pod of {SIZES} has {sizes[place.node_rank]} ranks, this {own}"
        return ""

    def ranks(self, place: Assignment, *, by_name: bool) -> Mapping[int, Mapping[str, str]]:
        """The variables of each rank that a place gives to this pod.

        `by_name`: whether MASTER_ADDR names node rank 0 even where its address is known. To the
        name, name servers may give the address of the pod before for half a minute; only ranks
        that form their group by themselves know better.
        """
        if place.node_rank is None:
            return {}
        own = self.placement.local_world_size
        first_rank, world_size = place.node_rank * own, place.nodes * own
        if self._sizes_are_fixed:
            sizes = self.placement.pod_sizes
            first_rank, world_size = sizes.first_rank(place.node_rank), sum(sizes.sizes)
        common: Mapping[str, str] = {}
        if place is not self.born:
            common = _variables(place, world_size=world_size, by_name=by_name)
        return {
            first_rank + local_rank: {
                **common,
                "RANK": str(first_rank + local_rank),
                "LOCAL_RANK": str(local_rank),
                # To torchrun, below the launcher, each rank is a node of one process: whatever
                # starts it in several ranks of a pod, they are as many as there should be.
                "PET_NODE_RANK": str(first_rank + local_rank),
                "PET_NNODES": str(world_size),
                "PET_NPROC_PER_NODE": "1",
            }
            for local_rank in range(own)
        }


def _hold_seconds(env: Mapping[str, str]) -> int:
    text = env.get(HOLD_SECONDS) or "0"
    if not (text.isdecimal() and len(text) <= _HOLD_DIGITS):
        raise ConfigurationError(f"{HOLD_SECONDS} is {text!r}: set it to a number of seconds")
    return int(text)


def _variables(place: Assignment, *, world_size: int, by_name: bool) -> Mapping[str, str]:
    """In the words of torch's `env://`, of torchrun, and our own."""
    node_rank, nodes = str(place.node_rank), str(place.nodes)
    master_addr = place.master_addr if by_name else place.master_address or place.master_addr
    return {
        "MASTER_ADDR": master_addr,
        "WORLD_SIZE": str(world_size),
        "NODE_RANK": node_rank,
        "GROUP_RANK": node_rank,
        "GROUP_WORLD_SIZE": nodes,
        "PET_MASTER_ADDR": master_addr,
        GENERATION: str(place.generation),
    }
