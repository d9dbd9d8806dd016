"""Requests to a pod's launcher from outside the cluster.

A program in the pod sends the request: it has the pod's token and reaches the launcher's loopback.
"""

from typing import Final

from ddp_operator.api.constants import ENV_STATUS_PORT, ENV_TOKEN
from ddp_operator.kube.errors import AnswerTooLargeError
from ddp_operator.ports import ClusterError, Key

from ddp_client.remote.channels import run_in_pod
from ddp_client.remote.cluster import Cluster

_NO_LAUNCHER: Final = 3
_OLD: Final = 4
_REFUSED: Final = 5
_SILENT: Final = 6
_LINE: Final = 512
_PROGRAM: Final = f"""
import http.client, os, sys
port, token = os.environ.get({ENV_STATUS_PORT!r}, ""), os.environ.get({ENV_TOKEN!r}, "")
if not port:
    sys.exit({_NO_LAUNCHER})
try:
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=float(sys.argv[2]))
    connection.request(sys.argv[3], sys.argv[1], headers={{"Authorization": "Bearer " + token}})
    answer = connection.getresponse()
    body = answer.read()
except ConnectionRefusedError:
    sys.exit({_NO_LAUNCHER})
except (OSError, http.client.HTTPException) as error:
    print(error, file=sys.stderr)
    sys.exit({_SILENT})
if answer.status == 404:
    sys.exit({_OLD})
(sys.stdout if answer.status < 300 else sys.stderr).buffer.write(body)
sys.exit(0 if answer.status < 300 else {_REFUSED})
"""
"""Uses only the standard library, because the image may have any release and Python version."""


class NoAnswerError(Exception):
    """A pod's launcher did not answer; the message says why.

    `silent`: it was asked and says nothing. Otherwise it could not be asked, or refused.
    """

    def __init__(self, message: str, *, silent: bool = False) -> None:
        super().__init__(message)
        self.silent = silent


async def ask_launcher(
    cluster: Cluster,
    pod: Key,
    container: str,
    path: str,
    *,
    method: str = "POST",
    limit_bytes: int,
    seconds: float,
) -> bytes:
    """Send a request to a pod's launcher, and return its answer.

    Raises:
        NoAnswerError: no answer, a refusal, or a timeout.
    """
    # -I: the container's working directory may have an http.py.
    command = ["python3", "-I", "-c", _PROGRAM, path, f"{seconds:g}", method]
    try:
        ran = await run_in_pod(
            cluster.client,
            pod,
            container,
            command,
            limit_bytes=limit_bytes,
            timeout_seconds=2 * seconds,  # includes the start of Python
        )
    except AnswerTooLargeError:
        raise NoAnswerError(f"it answered with more than {limit_bytes} bytes") from None
    except ClusterError as error:
        raise NoAnswerError(error.message) from None
    if ran.exit_code == 0:
        return ran.stdout
    problem = ran.stderr[:_LINE].decode(errors="replace")
    raise NoAnswerError(
        {
            _NO_LAUNCHER: "its command does not run under the launcher: set spec.launcher: inject, "
            "or start it with python -m ddp_trainer.launch -- ...",
            _OLD: "its launcher's release does not support this: use a newer trainer image",
            _REFUSED: f"its launcher did not answer: {problem}",
            _SILENT: f"its launcher did not answer: {problem}",
            # The container runtime's exit codes for a missing program.
            126: "its image has no python3 on the PATH",
            127: "its image has no python3 on the PATH",
        }.get(ran.exit_code, f"python3 ended with exit code {ran.exit_code}: {problem}"),
        silent=ran.exit_code == _SILENT,
    )
