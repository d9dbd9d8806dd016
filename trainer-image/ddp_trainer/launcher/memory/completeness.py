"""Decides which steps are complete, and which will never be. Pure; for node rank 0.

A step is complete when all pods hold it and its copies. A pod with a full memory skips steps. If
pods skipped different steps, none of those could ever be complete. So a step is dead as soon as one
pod was asked for it and does not hold it. Its holders release it, and can save the same next step.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from ddp_trainer.launcher.memory.protocol.messages import MAX_TEXT, Held, KeysReport


class Completeness:
    """The steps of one generation, from the newest report of each pod. Thread-safe.

    Reports may arrive late or out of order. A pod that was once asked for a step without holding it
    will never hold it, so an old report cannot make a dead step complete.
    """

    def __init__(self, nodes: int) -> None:
        """`nodes`: pods in the group."""
        self._nodes = nodes
        self._reports: dict[int, tuple[int, Mapping[int, Held], str]] = {}
        self._lock = threading.Lock()
        self._complete: int | None = None
        self._bytes = 0
        self._replicated = False
        self._given_up: frozenset[int] = frozenset()

    @property
    def complete(self) -> int | None:
        """The newest complete step; it never decreases."""
        return self._complete

    @property
    def bytes(self) -> int:
        """Size of the newest complete snapshots in the pod that has the most."""
        return self._bytes

    @property
    def replicated(self) -> bool:
        """True: in the newest complete step, all pods hold the same state."""
        return self._replicated

    @property
    def refusal(self) -> str:
        """Why the first pod that saves or copies nothing does so; empty: there is none."""
        with self._lock:
            for node_rank, (_, _, refusal) in sorted(self._reports.items()):
                if refusal:
                    return f"node rank {node_rank}: {refusal}"[:MAX_TEXT]
        return ""

    def note(self, report: KeysReport) -> bool:
        """Store a pod's report; return True if another step is complete now."""
        asked = -1 if report.asked is None else report.asked
        held = {one.step: one for one in report.held}
        with self._lock:
            self._reports[report.node_rank] = (asked, held, report.refusal)
            for step in sorted(held, reverse=True):
                if self._complete is not None and step <= self._complete:
                    break
                found = self._of_all(step)
                if found is not None:
                    self._complete, self._bytes = step, max(one.bytes for one in found)
                    self._replicated = found[0].replicated
                    return True
        return False

    def give_up(self) -> None:
        """Let the steps that pods hold be dead, because their copies go to other pods from now on.

        Otherwise a step could need more room than there is: for its copies in both places.
        """
        with self._lock:
            above = -1 if self._complete is None else self._complete
            self._given_up |= {
                step
                for _, held, _ in self._reports.values()
                for step, one in held.items()
                if step > above and not one.replicated
            }

    def _of_all(self, step: int) -> list[Held] | None:
        """Return what each pod holds of a step, if it is complete."""
        if step in self._given_up:
            return None
        found = [held[step] for _, held, _ in self._reports.values() if step in held]
        if len(found) < self._nodes or len({one.replicated for one in found}) > 1:
            return None
        return found if all(one.copied or one.replicated for one in found) else None

    def missing(self) -> tuple[int, list[int]] | None:
        """Return the newest step that some pods hold, and the pods that were not asked for it.

        None: all pods were asked for it, or no pod holds a step above the complete one.
        """
        above = -1 if self._complete is None else self._complete
        with self._lock:
            steps = [step for _, held, _ in self._reports.values() for step in held]
            newest = max(steps, default=-1)
            asked = {node_rank: asked for node_rank, (asked, _, _) in self._reports.items()}
        late = [rank for rank in range(self._nodes) if asked.get(rank, -1) < newest]
        return (newest, late) if newest > above and late else None

    def dead(self) -> tuple[int, ...]:
        """Return the held steps that will never be complete, of those above the complete one."""
        with self._lock:
            above = -1 if self._complete is None else self._complete
            steps = {step for _, held, _ in self._reports.values() for step in held}
            dead = self._given_up.union(filter(self._is_dead, steps))
            return tuple(sorted(step for step in dead if step > above))

    def can_complete(self, step: int) -> bool:
        """Return whether a step is complete or may become so."""
        with self._lock:
            if self._complete is not None and step <= self._complete:
                return True
            return step not in self._given_up and not self._is_dead(step)

    def _is_dead(self, step: int) -> bool:
        kinds = set()
        for asked, held, _ in self._reports.values():
            if step in held:
                kinds.add(held[step].replicated)
            elif asked >= step:
                return True
        return len(kinds) > 1
