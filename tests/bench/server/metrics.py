"""The API server's own count of the requests that it served."""

import re
from collections import Counter
from typing import Self

_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
# What happens for the sake of no job: events are a courtesy, leases a heartbeat.
_EVENTS = "events"
_LEASES = "leases"

_SAMPLE = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Requests(Counter[tuple[str, str]]):
    """How many requests, by verb and resource (with its subresource, where there is one)."""

    def since(self, before: Self) -> Self:
        """Return what was added to an earlier count."""
        return type(self)({key: n - before[key] for key, n in self.items() if n != before[key]})

    def writes(self, *, events: bool = False) -> Self:
        """Return the requests that changed something, refused ones included; leases are left out,
        events unless asked for.
        """
        left_out = {_LEASES} if events else {_LEASES, _EVENTS}
        return type(self)(
            {(v, r): n for (v, r), n in self.items() if v in _WRITES and r not in left_out}
        )


def parse_requests(text: str) -> Requests:
    """Read `apiserver_request_total` from metrics in Prometheus' text format.

    Requests for paths that are no resource (health, metrics, discovery) are left out.
    """
    counted = Requests()
    for sample in _SAMPLE.finditer(text):
        labels = dict(_LABEL.findall(sample["labels"]))
        if resource := labels.get("resource"):
            subresource = labels.get("subresource")
            name = f"{resource}/{subresource}" if subresource else resource
            counted[(labels["verb"], name)] += int(float(sample["value"]))
    return counted
