"""A launcher with its status server on one address only, and with shorter waits.

So one machine can have several launchers on one port, as pods have.

    python -m tests.trainer.support.launcher_at ADDRESS '{"ANSWER_SECONDS": 1}' [ARGUMENTS]

The arguments are the launcher's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})

from ddp_trainer import launch
from ddp_trainer.launcher import lifetime
from ddp_trainer.launcher.status_server.bounded_http import BoundedServer
from ddp_trainer.launcher.world import lead_timer, leading
from ddp_trainer.system.logs import end_process


def main() -> int:
    """Run `ddp_trainer.launch`."""
    address, waits, *arguments = sys.argv[1:]
    bind = BoundedServer.server_bind

    def bind_there(server: BoundedServer) -> None:
        port = server.server_address[1]
        mapped = server.address_family == socket.AF_INET6
        server.server_address = (f"::ffff:{address}" if mapped else address, port)
        bind(server)

    for name, seconds in json.loads(waits).items():
        [module] = (each for each in (lifetime, lead_timer) if hasattr(each, name))
        setattr(module, name, seconds)
    # As in `WorldJob`: pods have addresses, and no names.
    leading.host_of = lambda _, slot: f"127.0.0.{1 + slot}"  # type: ignore[assignment]
    BoundedServer.server_bind = bind_there  # type: ignore[method-assign,assignment]
    return launch.main(arguments, os.environ)


if __name__ == "__main__":
    end_process(main())
