"""Runs one history, `python -m tests.simulation HEX`, from the bytes that a failed test reported;
or many new ones, `python -m tests.simulation --histories N`, and counts violations.
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

_LASTS = "all faults end, but for "
_KIND = re.compile(r"[-\d.]+|\bobserved_generation\b.*|\bTruth\(.*")
"""Parts of a claim that differ between violations of the same kind."""


def main() -> int:
    """Return 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "history", nargs="?", metavar="HEX", help="run this history, and print its events"
    )
    which.add_argument("--histories", type=int, metavar="N", help="run so many new ones")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="but not for longer")
    args = parser.parse_args()
    if args.history:
        return _run_one(bytes.fromhex(args.history))
    return _run_many(args.histories, args.minutes)


def _run_one(history: bytes) -> int:
    """Run one history, and print what happened."""
    try:
        simulation = run(history)
    except AssertionError as error:
        print(error)
        return 1
    print("\n".join(simulation.events))
    print("nothing is wrong with it")
    return 0


def _run_many(histories: int, minutes: float) -> int:
    """Run many, and print each kind of violation with how often it was seen."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    wrong = Counter[str]()
    first: dict[str, str] = {}
    began, completed = time.monotonic(), 0
    while completed < histories and time.monotonic() - began < minutes * 60:
        steps = LEAST_STEPS + secrets.randbelow(MOST_STEPS - LEAST_STEPS + 1)
        history = secrets.token_bytes(SPEC_BYTES + steps * STEP_BYTES)
        completed += 1
        try:
            run(history)
        except AssertionError as error:
            claim, *events = str(error).splitlines() or ["an assertion failed"]
            lasts = next((line.partition(_LASTS)[2] for line in events if _LASTS in line), "")
            kind = _KIND.sub("#", claim)[:120] + f" ({lasts})" * bool(lasts)
            wrong[kind] += 1
            first.setdefault(kind, history.hex())
    for kind, times in wrong.most_common():
        print(f"{times:6}  {kind}\n        {first[kind]}")
    seconds = time.monotonic() - began
    print(f"{completed} histories in {seconds:.0f} s, {sum(wrong.values())} with something wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
