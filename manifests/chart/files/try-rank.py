"""A rank of the job that `helm test` runs: ranks connect to rank 0, as in a real job."""

import os
import socket
import time

port, rank, world = (int(os.environ[name]) for name in ("MASTER_PORT", "RANK", "WORLD_SIZE"))
deadline = time.monotonic() + 180
if rank == 0:
    with socket.create_server(("", port), family=socket.AF_INET) as server:
        server.settimeout(180)
        for _ in range(world - 1):
            server.accept()[0].close()
else:
    while True:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=5).close()
            break
        except OSError as error:  # rank 0 may start later, and its DNS name may resolve later still
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"cannot connect to rank 0 at {os.environ['MASTER_ADDR']}:{port}: {error}"
                ) from None
            time.sleep(1)
print(f"rank {rank} of {world}: connected", flush=True)
