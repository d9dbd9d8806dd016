"""Tells one history, `python -m tests.simulation HEX`, with the bytes that a failed test reported;
or lives through new ones, `python -m tests.simulation --histories N`, and counts what is wrong.
"""

import argparse
import gc
import re
import secrets
import sys
import time
from collections import Counter

from tests.simulation.history import LEAST_STEPS, MOST_STEPS, SPEC_BYTES, STEP_BYTES
from tests.simulation.run import run

_KIND = re.compile(r"[-\d.]+|\bobserved_generation\b.*|\bTruth\(.*")
"""What differs from one violation to the next of the same kind."""


def main() -> int:
    """Return 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("history", nargs="?", metavar="HEX", help="tell this history")
    which.add_argument("--histories", type=int, metavar="N", help="live through so many new ones")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="but not for longer")
    args = parser.parse_args()
    if args.history:
        return _tell(bytes.fromhex(args.history))
    return _live(args.histories, args.minutes)


def _tell(history: bytes) -> int:
    """Live through one history, and print what happened."""
    try:
        simulation = run(history)
    except AssertionError as error:
        print(error)
        return 1
    print("\n".join(simulation.events))
    print("nothing is wrong with it")
    return 0


def _live(histories: int, minutes: float) -> int:
    """Live through many, and print each kind of violation with how often it was seen."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    wrong: Counter[str] = Counter()
    first: dict[str, str] = {}
    began, lived = time.monotonic(), 0
    while lived < histories and time.monotonic() - began < minutes * 60:
        steps = LEAST_STEPS + secrets.randbelow(MOST_STEPS - LEAST_STEPS + 1)
        history = secrets.token_bytes(SPEC_BYTES + steps * STEP_BYTES)
        lived += 1
        try:
            run(history)
        except AssertionError as error:
            claim, *tale = str(error).splitlines() or ["an assertion failed"]
            lasts = next((line.partition("lasts: ")[2] for line in tale if "lasts: " in line), "")
            kind = _KIND.sub("#", claim)[:120] + f" ({lasts})" * bool(lasts)
            wrong[kind] += 1
            first.setdefault(kind, history.hex())
    for kind, times in wrong.most_common():
        print(f"{times:6}  {kind}\n        {first[kind]}")
    seconds = time.monotonic() - began
    print(f"{lived} histories in {seconds:.0f} s, {sum(wrong.values())} with something wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
