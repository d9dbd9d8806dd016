"""Runs as every rank of a job: meets the others at MASTER_ADDR and ends as ENDS says.

It needs no torch. Rank 0 prints the places of all ranks, since other pods may be gone when the test
reads their logs. WANTED names further variables to print, ENDS the exit codes of ranks (`0:3`), and
STAYS the ranks that run until SIGTERM.
"""

import json
import os
import socket
import sys
import time

env = os.environ
rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
wanted = {name: env.get(name) for name in env.get("WANTED", "").split()}
place = {"rank": rank, "local": int(env.get("LOCAL_RANK", 0)), "size": size, "env": wanted}
# A launcher may listen on MASTER_PORT itself.
where = (env["MASTER_ADDR"], int(env["MASTER_PORT"]) + 100)
deadline = time.monotonic() + 120
if rank == 0:
    with socket.create_server(("", where[1])) as server:
        server.settimeout(120)
        guests = [server.accept()[0].makefile("rw") for _ in range(size - 1)]
        places = [place, *(json.loads(guest.readline()) for guest in guests)]
    print("\nPROBE " + json.dumps(places), flush=True)
    for guest in guests:
        guest.write("all are there\n")
        guest.flush()
else:
    while True:
        try:
            host = socket.create_connection(where, timeout=120).makefile("rw")
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    host.write(json.dumps(place) + "\n")
    host.flush()
    host.readline()
if str(rank) in env.get("STAYS", "").split():
    time.sleep(3600)
ends = dict(pair.split(":") for pair in env.get("ENDS", "").split())
sys.exit(int(ends.get(str(rank), 0)))
