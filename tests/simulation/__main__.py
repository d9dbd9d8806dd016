"""Tells a history: `python -m tests.simulation HEX`, with the bytes that a failed test reported."""

import sys

from tests.simulation.run import run


def main() -> int:
    """Live through one history, print what happened, and return 1 when something is wrong."""
    try:
        simulation = run(bytes.fromhex(sys.argv[1]))
    except AssertionError as error:
        print(error)
        return 1
    print("\n".join(simulation.tale))
    print("nothing is wrong with it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
