"""Remedies of a team's own, from the ConfigMap `ddp-remedies` of the job's namespace.

Each key has a text to look for in its first line, and the remedy in the lines after it. `*` stands
for any characters of a line. There are no regular expressions, so that no entry can take long.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ddp_operator.api.values.text import clean

from ddp_client.views.job.diagnosis import Diagnosis
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot

CONFIG_MAP: Final = "ddp-remedies"
MOST: Final = 50
"""The most entries that are read, in the order of their keys."""
_SHORTEST, _LONGEST = 5, 200
"""Lengths of a text; of the shortest one, without * and spaces."""
_MOST_STARS: Final = 4
_LONGEST_REMEDY: Final = 400
_LONGEST_MESSAGE: Final = 8192
_MOST_MESSAGES: Final = 64
_DONE: Final = ("Running", "Succeeded", "Suspended")
"""Phases whose failures are over."""


@dataclass(frozen=True)
class _Entry:
    parts: tuple[str, ...]
    """The text between its stars."""
    remedy: str

    def is_in(self, line: str) -> bool:
        at = 0
        for part in self.parts:
            at = line.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return True


@dataclass(frozen=True)
class OwnRemedies:
    """The entries of the ConfigMap, and what is wrong with others."""

    entries: tuple[_Entry, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, data: Mapping[str, object]) -> "OwnRemedies":
        """Read the ConfigMap's data."""
        entries, problems = [], []
        for key in sorted(data)[:MOST]:
            text, _, remedy = str(data[key])[: 4 * _LONGEST_REMEDY].strip().partition("\n")
            text, remedy = text.strip(), clean(remedy, 2 * _LONGEST_REMEDY)
            if problem := _problem(text, remedy):
                problems.append(f"ConfigMap {CONFIG_MAP}, key {clean(key, 80)}: {problem}")
            else:
                entries.append(_Entry(tuple(filter(None, text.split("*"))), remedy))
        if len(data) > MOST:
            problems.append(
                f"ConfigMap {CONFIG_MAP}: it has {len(data)} keys, but only the first {MOST} are "
                "read; remove some"
            )
        return cls(tuple(entries), tuple(problems))

    def matching(self, messages: Iterable[str]) -> list[str]:
        """Return the remedies of texts that a line of a message contains, without duplicates."""
        lines = [line for text in messages for line in text[-_LONGEST_MESSAGE:].splitlines()]
        found = (one.remedy for one in self.entries if any(map(one.is_in, lines)))
        return list(dict.fromkeys(found))


NONE: Final = OwnRemedies()


def _problem(text: str, remedy: str) -> str:
    """Return why an entry is ignored; empty: it is not."""
    if not remedy:
        return "it has one line; write the text to look for in the first, the remedy below it"
    if len(text) > _LONGEST or text.count("*") > _MOST_STARS:
        return f"its text is longer than {_LONGEST} characters, or has more than {_MOST_STARS} *"
    if len(text.replace("*", "").replace(" ", "")) < _SHORTEST:
        return f"its text {text!r} has fewer than {_SHORTEST} letters, so it would match too much"
    if len(remedy) > _LONGEST_REMEDY:
        return f"its remedy is longer than {_LONGEST_REMEDY} characters; link a page instead"
    return ""


def with_own(found: Diagnosis, own: OwnRemedies, job: JobSnapshot, pods: Pods) -> Diagnosis:
    """Put a team's own remedies before the others, and name entries that are ignored."""
    messages = [] if job.status.phase in _DONE else [one.message for one in job.status.failures]
    for pod in pods.current.values():
        messages += [pod.waiting_message or "", pod.exit.message if pod.exit else ""]
    found.remedies[:0] = own.matching(list(dict.fromkeys(messages))[:_MOST_MESSAGES])
    found.evidence += own.problems
    return found
