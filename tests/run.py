"""Prepares what the tests need, then runs them in lanes: `make test`, `make nightly`.

One lane waits for pods most of its time, two start processes, two compute and two talk to an API
server, so that a few of them together take little longer than one. Each part of a lane is an
ordinary pytest run. What takes minutes to build is prepared first, outside any test's time limit.
"""

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from tests import durations, nightly
from tests.cluster.errors import ClusterError, ClusterUnavailableError
from tests.cluster.preparation import kubernetes
from tests.cluster.preparation.progress import in_words
from tests.cluster.preparation.steps import Stage, prepare, say_what_is_there, steps

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build/tests"
"""Logs and JUnit reports of the last run."""


@dataclass(frozen=True)
class Part:
    """One run of pytest."""

    tests: Sequence[str]
    needs: Stage | None = None
    """The stage that must be prepared before it starts; None: no stage."""


LOST_RANKS = ("tests/trainer/library", "tests/trainer/stream_device")
"""Scripts and devices that lose ranks: half of the time of all tests that start processes."""

PODS_IN_QUEUES = "tests/e2e/test_queues.py"
MONITORING = "tests/integration/monitoring"
PAGES = "tests/integration/pages"
QUEUES = "tests/integration/queues"
APART = (MONITORING, PAGES, QUEUES)
"""Tests that need more than an API server."""

DAILY: Mapping[str, Sequence[Part]] = {
    "real pods": (
        Part(("tests/cluster", "tests/e2e", f"--ignore={PODS_IN_QUEUES}"), Stage.IMAGES),
        # Kueue is built meanwhile, which takes long on a busy machine.
        Part((PODS_IN_QUEUES,), Stage.KUEUE),
    ),
    # Deadlines of processes would expire beside a build of Kubernetes, which takes both cores.
    "processes": (
        Part(
            ("tests/local", "tests/trainer", *(f"--ignore={part}" for part in LOST_RANKS)),
            Stage.NODE,
        ),
    ),
    "API server": (
        Part(
            ("tests/integration", *(f"--ignore={part}" for part in APART)),
            Stage.API_SERVER,
        ),
        Part((MONITORING,), Stage.MONITORING),
        Part((PAGES,), Stage.BROWSER),
    ),
    "lost ranks": (Part(LOST_RANKS, Stage.NODE),),
    "queues": (Part((QUEUES,), Stage.KUEUE),),
    "histories": (Part(("tests/simulation",)),),
    "decisions": (Part(("tests/unit", "tests/chart")),),
}
"""The longest lane first: it also starts first."""

CHAOS: Mapping[str, Sequence[Part]] = {
    "chaos of pods": (Part(("tests/chaos",), Stage.IMAGES),),
    "chaos of processes": (Part(("tests/trainer/chaos",), Stage.IMAGES),),
}

RARE: Mapping[str, Sequence[Part]] = {
    **CHAOS,
    "incidents": (Part(("tests/incidents/test_incidents.py",), Stage.KUEUE),),
}
"""Lanes of nightly tests alone."""

LANES_PER_CORE = 2
"""A lane waits half of its time. With more lanes, servers and ranks that share a core answer too
late for the tests that wait for them."""

_NO_TESTS = 5
"""pytest's exit code if a share leaves out all tests of a part."""


@dataclass(frozen=True)
class Suite:
    """Lanes that run beside each other."""

    lanes: Mapping[str, Sequence[Part]]
    nightly: str = "none"
    """Which nightly tests run: the value of `--nightly`."""


def suite_of(name: str, share: str | None) -> Suite:
    """Return the lanes that the command line asks for."""
    if share is not None:
        return Suite({**DAILY, **RARE}, share)
    return {
        "tests": Suite(DAILY),
        "decisions": Suite({name: DAILY[name] for name in ("histories", "decisions")}),
        "chaos": Suite(CHAOS, "all"),
        "nightly": Suite({**DAILY, **RARE}, "all"),
    }[name]


class Turns:
    """Lets a few lanes run at a time. The first lane of the suite that has all it needs is next."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._reached: set[Stage | None] = {None}
        self.waiting: dict[int, Stage | None] = {}
        """The lanes' places, and what each of them needs."""
        self._changed = threading.Condition()

    def reach(self, *stages: Stage) -> None:
        """Start lanes that need these stages."""
        with self._changed:
            self._reached.update(stages)
            self._changed.notify_all()

    @contextmanager
    def taken(self, place: int, needs: Stage | None) -> Iterator[None]:
        """Wait until it is the turn of the lane at that place of its suite, and take it."""
        with self._changed:
            self.waiting[place] = needs
            self._changed.wait_for(lambda: self._left and place == self._next())
            del self.waiting[place]
            self._left -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._left += 1
                self._changed.notify_all()

    def _next(self) -> int | None:
        can = (place for place, needs in self.waiting.items() if needs in self._reached)
        return min(can, default=None)


class Lane(threading.Thread):
    """Runs the parts of a lane one after the other, each as soon as it can."""

    def __init__(
        self,
        parts: Sequence[Part],
        turn: Callable[[Stage | None], AbstractContextManager[None]],
        log: Path,
        options: Sequence[str],
        *,
        may_be_empty: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        self._may_be_empty = may_be_empty
        self._parts = parts
        self._options = options
        self._turn = turn
        self.log = log
        self.log.touch()
        self.reports = [log.with_suffix(f".{number}.xml") for number in range(len(parts))]
        """JUnit reports, one for each part."""
        self.exit_code = 0
        self.interrupted = threading.Event()
        """Set when no further part may start."""
        self.took_s = 0.0
        """Of the tests alone, without waiting for a turn or for preparation."""
        self.cpu_s = 0.0
        """Of pytest and its children; servers are not included."""

    def run(self) -> None:
        """Run pytest for each part, also after a failure in the one before."""
        command = [sys.executable, "-m", "pytest", *self._options]
        for part, report in zip(self._parts, self.reports, strict=True):
            with self._turn(part.needs):
                if self.interrupted.is_set():
                    return
                self._run([*command, *part.tests, f"--junitxml={report}"])

    def _run(self, command: Sequence[str]) -> None:
        began = time.monotonic()
        with self.log.open("a") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=output,
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != _NO_TESTS or not self._may_be_empty:
            self.exit_code = max(self.exit_code, abs(process.returncode))
        self.took_s += time.monotonic() - began
        self.cpu_s += usage.ru_utime + usage.ru_stime

    def report(self) -> None:
        """Print the lane's output until it has ended."""
        with self.log.open() as output:
            while True:
                ended = not self.is_alive()
                sys.stdout.write(output.read())
                sys.stdout.flush()
                if ended:
                    return
                self.join(timeout=0.2)


def main() -> int:
    """Prepare and run all lanes; return 0 if all tests passed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.run", description="Other arguments are pytest's."
    )
    parser.add_argument(
        "suite", nargs="?", choices=("tests", "decisions", "chaos", "nightly"), default="tests"
    )
    parser.add_argument(
        "--share",
        type=nightly.checked_share,
        metavar=f"K/{nightly.SHARES}",
        help="run the tests, and this share of the nightly ones",
    )
    arguments, options = parser.parse_known_args()
    suite = suite_of(arguments.suite, arguments.share)
    print(f"== nightly tests: {suite.nightly}", flush=True)
    release = nightly.kubernetes_release(os.environ, datetime.now(UTC).date())
    if arguments.suite == "nightly" and release:
        os.environ[kubernetes.VERSION_VARIABLE] = release
        print(f"== {kubernetes.VERSION_VARIABLE}={release}, by today's date", flush=True)
    options = [f"--nightly={suite.nightly}", *options]
    began = time.monotonic()
    turns = Turns(LANES_PER_CORE * (os.cpu_count() or 1))
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    lanes = {
        name: Lane(
            parts,
            partial(turns.taken, place),
            REPORTS / f"{name.replace(' ', '-')}.log",
            options,
            may_be_empty=name in RARE,
        )
        for place, (name, parts) in enumerate(suite.lanes.items())
    }
    for lane in lanes.values():
        lane.start()
    try:
        needed = {part.needs for parts in suite.lanes.values() for part in parts}
        worst = _prepare(turns) if needed - {None} else 0
        prepared_s = time.monotonic() - began
        for name, lane in lanes.items():
            print(
                f"== {name}: {' '.join(word for part in suite.lanes[name] for word in part.tests)}"
            )
            lane.report()
            worst = max(worst, lane.exit_code)
    except KeyboardInterrupt:  # the terminal also interrupts pytest, which removes its cluster
        for lane in lanes.values():
            lane.interrupted.set()
        for lane in lanes.values():
            lane.join()
        return 130
    for name, lane in lanes.items():
        print("\n".join(durations.slowest(name, lane.reports)))
    took = ", ".join(
        f"{name} {in_words(lane.took_s)} (CPU {in_words(lane.cpu_s)})"
        for name, lane in lanes.items()
    )
    print(f"== prepared in {in_words(prepared_s)}; lanes: {took}; reports: {REPORTS}")
    reports = [report for lane in lanes.values() for report in lane.reports]
    missing = not_run(reports)
    for reason, tests in missing.most_common():
        print(f"== NOT RUN: {tests} tests: {reason}")
    result = "FAILED" if worst else "passed, as far as it ran," if missing else "passed"
    print(f"== {result} in {in_words(time.monotonic() - began)}")
    return worst


def not_run(reports: Iterable[Path]) -> Counter[str]:
    """Count the tests that were skipped, by the reasons that pytest's reports give."""
    return Counter(
        skip.get("message", "without a reason")
        for report in reports
        if report.exists()
        for skip in ElementTree.parse(report).iter("skipped")
    )


def _prepare(turns: Turns) -> int:
    """Prepare all stages, and start all lanes even if that fails."""
    try:
        wanted = steps()
        say_what_is_there(wanted)
        prepare(wanted, reached=turns.reach)
    except ClusterUnavailableError as reason:
        # Tests that need it say so, and fail in continuous integration.
        print(f"== no test cluster on this machine: {reason}")
    except ClusterError as error:
        print(f"== could not prepare the test cluster: {error}")
        return 1
    finally:
        turns.reach(*Stage)
    return 0


if __name__ == "__main__":
    sys.exit(main())
