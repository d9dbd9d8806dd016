"""Admission as in an API server: the input and the verdict of a ValidatingAdmissionPolicy.

Types and costs of expressions are left out; a CEL interpreter evaluates them.
"""

import copy
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import cel
from aiohttp import web

from tests.unit.kube.fake_api_server import FakeApiServer, Object

_OPERATIONS: Final = {"POST": "CREATE", "PATCH": "UPDATE", "PUT": "UPDATE", "DELETE": "DELETE"}


@dataclass(frozen=True)
class AdmissionRequest:
    """One write as admission sees it; `resource` includes its subresource, if any."""

    operation: str
    group: str
    resource: str
    username: str
    object: Object | None
    old_object: Object | None

    @property
    def namespace(self) -> str:
        """Return the namespace of the object."""
        metadata = (self.object or self.old_object or {})["metadata"]
        return str(metadata.get("namespace", ""))

    @property
    def act(self) -> str:
        """Return the operation and its resource, such as `CREATE pods`."""
        return f"{self.operation} {self.resource}"


class AdmittingServer(FakeApiServer):
    """Records the admission request of each write."""

    def __init__(self, username: str) -> None:
        super().__init__()
        self.username = username
        self.admissions: list[AdmissionRequest] = []

    async def _answer(self, request: web.Request, body: Any) -> web.StreamResponse:
        before = copy.deepcopy(self.objects)
        response = await super()._answer(request, body)
        is_write = request.method in _OPERATIONS and not request.path.endswith("accessreviews")
        if is_write and response.status < 300:
            self._admit(request, before)
        return response

    def _admit(self, request: web.Request, before: Mapping[tuple[str, str, str], Object]) -> None:
        root, _, rest = request.path.partition("/namespaces/")
        _, plural, *name = rest.split("/")
        [key] = [
            key
            for key in before.keys() | self.objects.keys()
            if key[0] == plural and before.get(key) != self.objects.get(key)
        ]
        created, deleted = request.method == "POST", request.method == "DELETE"
        self.admissions.append(
            AdmissionRequest(
                operation=_OPERATIONS[request.method],
                group=root.split("/")[2] if root.startswith("/apis/") else "",
                resource="/".join([plural, *name[1:]]),
                username=self.username,
                object=None if deleted else _written(self.objects[key], "now"),
                old_object=None if created else _written(before[key], "before"),
            )
        )


def _written(stored: Object, when: str) -> Object:
    """Return an object with the server's record of its last writer, which each write changes."""
    fields = [{"manager": "ddp-operator", "operation": "Update", "time": when}]
    return {**stored, "metadata": {**stored["metadata"], "managedFields": fields}}


class Policy:
    """A ValidatingAdmissionPolicy."""

    def __init__(self, manifest: Object, **variables: str) -> None:
        """Read a policy, with other expressions of its variables."""
        self._spec = copy.deepcopy(manifest["spec"])
        for variable in self._spec["variables"]:
            variable["expression"] = variables.pop(variable["name"], variable["expression"])
        assert not variables
        assert self._spec["failurePolicy"] == "Fail"
        self.messages = [
            validation.get("message") or validation["messageExpression"]
            for validation in self._spec["validations"]
        ]
        validations = [self._inlined(each["expression"]) for each in self._spec["validations"]]
        self._verdicts = f"[{', '.join(validations)}]"

    def _inlined(self, expression: str) -> str:
        """Return the expression with those of its variables, evaluated only when used."""
        for variable in reversed(self._spec["variables"]):
            name = rf"\bvariables\.{variable['name']}\b"
            expression = re.sub(name, lambda _: f"({variable['expression']})", expression)  # noqa: B023
        return f"({expression})"

    def applies_to(self, request: AdmissionRequest) -> bool:
        """Return whether the policy applies to the request."""
        return any(
            request.group in rule["apiGroups"]
            and request.resource in rule["resources"]
            and request.operation in rule["operations"]
            for rule in self._spec["matchConstraints"]["resourceRules"]
        ) and all(
            _evaluated(condition["expression"], request)
            for condition in self._spec.get("matchConditions", ())
        )

    def refusals(self, request: AdmissionRequest) -> list[str]:
        """Return the messages of all validations that do not hold."""
        verdicts = _evaluated(self._verdicts, request)
        assert all(isinstance(verdict, bool) for verdict in verdicts)
        return [
            message for message, holds in zip(self.messages, verdicts, strict=True) if not holds
        ]


def _evaluated(expression: str, request: AdmissionRequest) -> Any:
    resource, _, subresource = request.resource.partition("/")
    return _compiled(expression).execute(
        {
            "object": request.object,
            "oldObject": request.old_object,
            "request": {
                "operation": request.operation,
                "resource": {"group": request.group, "resource": resource},
                **({"subResource": subresource} if subresource else {}),
                "namespace": request.namespace,
                "userInfo": {"username": request.username},
            },
        }
    )


@functools.cache
def _compiled(expression: str) -> cel.Program:
    return cel.compile(expression)
