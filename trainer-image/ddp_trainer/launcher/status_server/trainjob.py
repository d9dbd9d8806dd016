"""Receives progress from scripts that report as in a Kubeflow TrainJob, such as those with Hugging
Face's Trainer.

Such a script reads an address, a token and a certificate from its environment. It POSTs a small
JSON document there about every five seconds. Here the launcher of rank 0's pod answers on loopback,
and the progress becomes the pod's status.
"""

from __future__ import annotations

import hmac
import json
import math
import secrets
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_protocol.message import utc_to_the_millisecond

from ddp_trainer.telemetry.prometheus import is_name
from ddp_trainer.telemetry.status import Status, StatusFile

PATH = "/trainjob-status"
MAX_BYTES = 32 * 1024
URL = "KUBEFLOW_TRAINER_SERVER_URL"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
_LARGEST = 2**53 - 1
_PERCENT = 100
_ACCURACIES = ("eval_accuracy", "accuracy")
"""Names of the score; the first is that of Hugging Face's Trainer."""
_NUMBERS = 64
"""Limit of the script's own metrics, as for `job.log`."""


class TrainJobStatus:
    """Turns a script's reports into the pod's status. `token` never leaves the pod."""

    def __init__(self, file: StatusFile, token: str) -> None:
        self._file = file
        self._token = token
        self._writing = threading.Lock()

    def admits(self, authorization: str | None) -> bool:
        """Return True if the request carries the token from the token's file."""
        expected = f"Bearer {self._token}"
        return hmac.compare_digest((authorization or "").encode(), expected.encode())

    def take(self, body: bytes) -> None:
        """Write a report to the pod's status.

        Raises:
            ValueError: the report violates the protocol; the message names the field.
            OSError: the status cannot be written.
        """
        said = _said(body)
        with self._writing:
            try:
                before = self._file.read()
            except ValueError:  # the file is not a status
                before = None
            if before is not None and before.measurements is not None:
                return  # ddp_trainer's own reports are more complete and exact
            now = merged(before, *said, utc_to_the_millisecond(time.time()))
            if now is not None:
                self._file.write(now)


def environment(env: Mapping[str, str], port: int, token_file: Path) -> dict[str, str]:
    """Return the variables for the script; none if the user has set another address."""
    if URL in env:
        return {}
    found = {URL: f"http://127.0.0.1:{port}{PATH}", TOKEN: str(token_file)}
    # Some clients load a certificate even for an http address; here it is not used.
    bundle = ssl.get_default_verify_paths().cafile
    return {**found, CA_CERT: bundle} if bundle else found


def write_token(path: Path) -> str:
    """Create a random token in a file that only this pod's user can read.

    Raises:
        OSError: it cannot be written.
    """
    token = secrets.token_urlsafe(32)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(token)
    return token


def merged(
    before: Status | None, percent: int | None, numbers: Mapping[str, float], now: str
) -> Status | None:
    """Return the status with the reported values; None: no step is known.

    At the beginning and the end there may be no step. Then the percentage counts: of the total
    number of steps if it is known, otherwise of 100.
    """
    rest = dict(numbers)
    step, total = _count(rest, "current_step"), _count(rest, "total_steps")
    if total is None and before is not None:
        total = before.total_steps
    if step is None and percent is not None:
        total = total if total is not None else _PERCENT
        if percent in (0, _PERCENT) or total == _PERCENT:
            step = total * percent // _PERCENT
        # For other totals a percentage is too coarse: the training would look stalled.
    if step is None and before is not None:
        step = before.step
    if step is None:
        return None
    known = before or Status(step=step)
    epoch, loss = rest.pop("current_epoch", None), rest.pop("loss", None)
    moved = before is None or step != before.step
    own = {name: value for name, value in rest.items() if is_name(name)}
    scores = (own[name] for name in _ACCURACIES if name in own)
    return replace(
        known,
        step=step,
        total_steps=total,
        last_step_time=now if moved and step else known.last_step_time,
        epoch=max(1, math.ceil(epoch)) if epoch is not None and epoch >= 0 else known.epoch,
        loss=loss if loss is not None else known.loss,
        accuracy=next(scores, known.accuracy),
        metrics=dict(list({**(known.metrics or {}), **own}.items())[:_NUMBERS]) or None,
    )


def _said(body: bytes) -> tuple[int | None, dict[str, float]]:
    """Return the percentage, and the numbers by their names."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    status = document.get("trainerStatus") if isinstance(document, dict) else None
    if not isinstance(status, dict):
        raise ValueError("trainerStatus: set it to an object")
    percent = status.get("progressPercentage")
    whole = isinstance(percent, int) and not isinstance(percent, bool)
    if percent is not None and not (whole and 0 <= percent <= _PERCENT):
        raise ValueError("progressPercentage: set it to a whole number from 0 to 100")
    metrics = status.get("metrics") or []
    if not isinstance(metrics, list):
        raise ValueError("metrics: set it to a list of objects with name and value")
    return percent, {str(m["name"]): _number(m.get("value")) for m in metrics if _is_number(m)}


def _is_number(metric: Any) -> bool:
    """Return True if a metric has a name and a finite number; scripts may also report text."""
    if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
        return False
    return math.isfinite(_number(metric.get("value")))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _count(numbers: dict[str, float], name: str) -> int | None:
    value = numbers.pop(name, None)
    return int(value) if value is not None and 0 <= value <= _LARGEST else None
