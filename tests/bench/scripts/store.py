"""A store by itself, which prints its CPU time in seconds for each line that it reads."""

import sys
import time

from torch._C._distributed_c10d import TCPStore

_store = TCPStore("localhost", int(sys.argv[1]), is_master=True, wait_for_workers=False)
while True:
    print(time.process_time(), flush=True)
    if not sys.stdin.readline():
        break
