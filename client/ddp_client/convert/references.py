"""Find references to the old project's host names and labels in a pod template."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_operator.api.constants import (
    API_VERSION,
    KIND,
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB_NAME,
)

from ddp_client.convert.notes import Notes

MASTER: Final = "$(MASTER_ADDR)"
_FOREIGN: Final = re.compile(
    r"(?:[\w-]+\.)*(?:kubeflow\.org|jobset\.sigs\.k8s\.io|(?:batch|apps)\.kubernetes\.io"
    r"|codeflare\.dev|sagemaker\.amazonaws\.com)/.+"
    r"|job-name|controller-uid|pytorch-(?:job-name|replica-type|replica-index)|group-name"
    r"|replica-(?:type|index|name)|job-role"
)
_CONVERTED: Final = ("PyTorchJob", "TrainJob", "JobSet")
_OF_METADATA: Final = re.compile(r"metadata\.(?:labels|annotations)\['(?P<name>[^']+)'\]")


@dataclass(frozen=True)
class Hosts:
    """Pods with host names that differ only in numbers."""

    prefix: str
    numbers: int
    """How many numbers follow the prefix, separated by dashes."""
    place: Callable[..., int]
    """Returns the pod's index here, from its numbers."""
    suffix: str = ""
    """The end of the name, such as `.service`."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """Match the host of one pod."""
        numbers = "-".join([r"(\d{1,6})"] * self.numbers)
        end = rf"{re.escape(self.suffix)}(?![\w-])"
        return re.compile(rf"(?<![\w.-]){re.escape(self.prefix)}{numbers}{end}")

    @property
    def computed(self) -> re.Pattern[str]:
        """Match the start of a host name that a script completes at run time."""
        end = rf"\S*{re.escape(self.suffix)}" if self.suffix else ""
        alone = r"(?:\d+-)*(?=[\"'\s]|$)"
        return re.compile(rf"(?<![\w.-]){re.escape(self.prefix)}(?:{alone}|[$%{{<]{end})")


@dataclass(frozen=True)
class Origin:
    """How the pods found each other in the old project."""

    job: str = ""
    """The DDPJob's name."""
    hosts: tuple[Hosts, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    """Labels and annotations with a pod's position, and the trainer's variable for each."""
    indexes: frozenset[str] = frozenset()
    """Labels with the same index that the pod has here."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Labels of all pods of the job, and their value."""
    attempts: frozenset[str] = frozenset()
    """Labels that counted restarts."""
    similar: Mapping[str, str] = field(default_factory=dict)
    """Labels whose meaning differs here, and what comes closest."""
    are_named_by_index: bool = False
    """Each pod's name was its host name and ended in its index."""

    def label(self, name: str) -> str | None:
        """Return the label of a DDPJob's pods with the same meaning."""
        known = {
            LABEL_JOB_NAME: self.names,
            LABEL_INDEX: self.indexes,
            LABEL_ATTEMPT: self.attempts,
        }
        return next((label for label, names in known.items() if name in names), None)

    def mentions_pods(self, text: str) -> bool:
        """Tell whether a text contains a pod's host name."""
        return any(each.pattern.search(text) or each.computed.search(text) for each in self.hosts)


def is_foreign(name: str) -> bool:
    """Tell whether other projects' controllers set or read a label or annotation."""
    return _FOREIGN.fullmatch(name) is not None


def mentions(value: Any, path: str = "") -> Iterator[str]:
    """Yield where another object names a job that is a DDPJob now, or labels of its pods."""
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from mentions(inner, f"{path}[{number}]")
    if not isinstance(value, dict):
        return
    kind, name = value.get("kind"), value.get("name")
    if path and kind in _CONVERTED and isinstance(name, str):
        yield (
            f"{path} names {kind} {name}, which is a {KIND} now; write apiVersion: {API_VERSION}, "
            f"kind: {KIND} there"
        )
    for key, inner in value.items():
        if key in ("matchLabels", "selector") and isinstance(inner, dict):
            labels = [label for label in inner if is_foreign(label)]
        else:
            labels = (
                [inner] if key == "key" and isinstance(inner, str) and is_foreign(inner) else []
            )
        if labels:
            yield (
                f"{path.lstrip('.')}.{key} selects no pod, because they have no label {labels[0]}; "
                f"select {LABEL_JOB_NAME}: NAME"
            )
        yield from mentions(inner, f"{path}.{key}" if path else key)


def rename_hosts(container: dict[str, Any], path: str, origin: Origin, notes: Notes) -> None:
    """Replace host names in the trainer's command and variables."""
    for name in ("command", "args"):
        if texts := container.get(name):
            where = f"{path}.{name}"
            container[name] = [_renamed(text, where, origin, notes) for text in texts]
    for entry in container.get("env") or []:
        if isinstance(entry.get("value"), str):
            where = f"{path}.env[{entry['name']}]"
            entry["value"] = _renamed(entry["value"], where, origin, notes)


def _renamed(text: str, path: str, origin: Origin, notes: Notes) -> str:
    for hosts in origin.hosts:

        def now(match: re.Match[str], hosts: Hosts = hosts) -> str:
            index = hosts.place(*map(int, match.groups()))
            name = f"{origin.job}-$(DDP_ATTEMPT)-{index}.{origin.job}" if index else MASTER
            notes.changed(path, f"{match[0]} is now {name}, the host name of pod {index}")
            return name

        is_computed = hosts.computed.search(text)
        text = hosts.pattern.sub(now, text)
        if is_computed:
            notes.changed(
                path,
                f"it builds host names from {hosts.prefix}; use {origin.job}-$(DDP_ATTEMPT)-, the "
                f"index, and .{origin.job}",
            )
    return text


def rename_labels(template: dict[str, Any], path: str, origin: Origin, notes: Notes) -> None:
    """Replace label names in field references and selectors."""
    own: set[str] = set((template.get("metadata") or {}).get("labels") or {})
    _Labels(origin, own, notes).walk(template["spec"], f"{path}.spec")


class _Labels:
    """Walks through a pod's spec."""

    def __init__(self, origin: Origin, own: set[str], notes: Notes) -> None:
        self._origin, self._own, self._notes = origin, own, notes

    def walk(self, value: Any, path: str) -> None:
        if isinstance(value, list):
            for number, inner in enumerate(value):
                name = inner.get("name", number) if isinstance(inner, dict) else number
                self.walk(inner, f"{path}[{name}]")
        elif isinstance(value, dict):
            for name, inner in value.items():
                self.walk(inner, f"{path}.{name}")
            if isinstance(value.get("fieldPath"), str):
                self._reference(value, path)
            if isinstance(value.get("labelSelector"), dict):
                self._selector(value["labelSelector"], f"{path}.labelSelector")
            for name in ("matchLabelKeys", "mismatchLabelKeys"):
                if isinstance(value.get(name), list):
                    value[name] = [self._key(one, f"{path}.{name}") for one in value[name]]

    def _is_gone(self, name: Any) -> bool:
        return isinstance(name, str) and is_foreign(name) and name not in self._own

    def _reference(self, field_ref: dict[str, Any], path: str) -> None:
        match = _OF_METADATA.fullmatch(field_ref["fieldPath"])
        if match is None or not self._is_gone(match["name"]):
            return
        where = path.removesuffix(".valueFrom.fieldRef").removesuffix(".fieldRef")
        if label := self._label(match["name"], where, "is empty: the pods have no", "replace it"):
            field_ref["fieldPath"] = f"metadata.labels['{label}']"

    def _key(self, name: Any, path: str) -> Any:
        if not self._is_gone(name):
            return name
        return self._label(name, path, "the pods have no label", "remove it") or name

    def _label(self, name: str, path: str, problem: str, remedy: str) -> str | None:
        """Return the label with the same meaning as another project's, and note the change."""
        label = self._origin.label(name)
        if label:
            self._notes.changed(path, f"now uses the label {label} instead of {name}")
        else:
            similar = self._origin.similar.get(name)
            remedy = f"use {similar}" if similar else remedy
            self._notes.changed(path, f"{problem} {name}; {remedy}")
        return label

    def _selector(self, selector: dict[str, Any], path: str) -> None:
        labels = selector.get("matchLabels")
        if isinstance(labels, dict):
            selector["matchLabels"] = {
                self._selected(name, [value], path): self._value(name, value)
                for name, value in labels.items()
            }
        expressions = selector.get("matchExpressions")
        for one in expressions if isinstance(expressions, list) else []:
            if isinstance(one, dict) and isinstance(one.get("key"), str):
                name, values = one["key"], one.get("values") or []
                one["key"] = self._selected(name, values, path)
                if isinstance(values, list) and values:
                    one["values"] = [self._value(name, value) for value in values]

    def _selected(self, name: str, values: Any, path: str) -> str:
        if not self._is_gone(name):
            return name
        label = self._origin.label(name)
        of_the_job = label == LABEL_JOB_NAME and all(
            value == self._origin.names[name] for value in values
        )
        if of_the_job and label:
            self._notes.changed(path, f"now uses the label {label} instead of {name}")
            return label
        self._notes.changed(
            path,
            f"selects no pod, because they have no label {name}; remove it, or select "
            f"{LABEL_JOB_NAME}: {self._origin.job}",
        )
        return name

    def _value(self, name: str, value: Any) -> Any:
        is_name = self._is_gone(name) and value == self._origin.names.get(name)
        return self._origin.job if is_name else value
