"""Progress from scripts that report it as in a TrainJob of Kubeflow's, such as those of Hugging
Face's Trainer.

They find an address, a token and a certificate in their environment, and POST a small JSON document
there every five seconds or so. Here the launcher of rank 0's pod is what answers, on loopback, and
what it hears becomes the pod's status.
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

from ddp_trainer.telemetry.prometheus import is_name
from ddp_trainer.telemetry.status import Status, StatusFile
from ddp_trainer.telemetry.wire import utc_to_the_millisecond

PATH = "/trainjob-status"
MAX_BYTES = 32 * 1024
URL = "KUBEFLOW_TRAINER_SERVER_URL"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
_LARGEST = 2**53 - 1
_PERCENT = 100
_NUMBERS = 64
"""Of a script's own, as from `job.log`."""


class TrainJobStatus:
    """What a pod's script says so; `token` is this launcher's alone, and never leaves the pod."""

    def __init__(self, file: StatusFile, token: str) -> None:
        self._file = file
        self._token = token
        self._writing = threading.Lock()

    def admits(self, authorization: str | None) -> bool:
        """Whether whoever asks has read the token's file."""
        expected = f"Bearer {self._token}"
        return hmac.compare_digest((authorization or "").encode(), expected.encode())

    def take(self, body: bytes) -> None:
        """Tell of it by the pod's status.

        Raises:
            ValueError: it is not what the protocol says; the message names the field.
            OSError: the status cannot be written.
        """
        said = _said(body)
        with self._writing:
            try:
                before = self._file.read()
            except ValueError:  # it is nobody's status
                before = None
            if before is not None and before.measurements is not None:
                return  # the library tells more, and more exactly
            now = merged(before, *said, utc_to_the_millisecond(time.time()))
            if now is not None:
                self._file.write(now)


def environment(env: Mapping[str, str], port: int, token_file: Path) -> dict[str, str]:
    """What a script is to find; nothing where a user sends it elsewhere."""
    if URL in env:
        return {}
    found = {URL: f"http://127.0.0.1:{port}{PATH}", TOKEN: str(token_file)}
    # Some clients load a certificate, whatever the address says; here nobody looks at it.
    bundle = ssl.get_default_verify_paths().cafile
    return {**found, CA_CERT: bundle} if bundle else found


def write_token(path: Path) -> str:
    """Make up a token, for those alone who may read the pod's files.

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
    """The status with what was said; None: no step is known.

    Without a step, as at the beginning and the end, the percentage says where it is: of the steps,
    if somebody has said how many there are, else of a hundred.
    """
    rest = dict(numbers)
    step, total = _count(rest, "current_step"), _count(rest, "total_steps")
    if total is None and before is not None:
        total = before.total_steps
    if step is None and percent is not None:
        total = total if total is not None else _PERCENT
        if percent in (0, _PERCENT) or total == _PERCENT:
            step = total * percent // _PERCENT
        # Of other totals a percentage is too coarse: a step would seem to stand still.
    if step is None and before is not None:
        step = before.step
    if step is None:
        return None
    known = before or Status(step=step)
    epoch, loss = rest.pop("current_epoch", None), rest.pop("loss", None)
    moved = before is None or step != before.step
    own = {name: value for name, value in rest.items() if is_name(name)}
    return replace(
        known,
        step=step,
        total_steps=total,
        last_step_time=now if moved and step else known.last_step_time,
        epoch=max(1, math.ceil(epoch)) if epoch is not None and epoch >= 0 else known.epoch,
        loss=loss if loss is not None else known.loss,
        metrics=dict(list({**(known.metrics or {}), **own}.items())[:_NUMBERS]) or None,
    )


def _said(body: bytes) -> tuple[int | None, dict[str, float]]:
    """The percentage, and the numbers by their names."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    status = document.get("trainerStatus") if isinstance(document, dict) else None
    if not isinstance(status, dict):
        raise ValueError("trainerStatus: an object is needed")
    percent = status.get("progressPercentage")
    whole = isinstance(percent, int) and not isinstance(percent, bool)
    if percent is not None and not (whole and 0 <= percent <= _PERCENT):
        raise ValueError("progressPercentage: a whole number from 0 to 100 is needed")
    metrics = status.get("metrics") or []
    if not isinstance(metrics, list):
        raise ValueError("metrics: a list of objects with name and value is needed")
    return percent, {str(m["name"]): _number(m.get("value")) for m in metrics if _is_number(m)}


def _is_number(metric: Any) -> bool:
    """Whether a metric has a name and a number; scripts may also report words."""
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
