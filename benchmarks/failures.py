"""Provokes failures through the real launcher and evaluator, and checks that each is understood.

Every case is a job of two ranks that goes wrong in a known way; what comes back must be a failure
of its kind. The table counts kinds given (columns) by kinds expected (rows). After each case, no
process of it may be left: orphans are counted too. Cases that need a network namespace or a mount
of their own are reported as not run where that is not permitted. Ends with status 1 if a kind is
wrong, a failure unclassified or an orphan left.

    python benchmarks/failures.py
    python benchmarks/failures.py --quick --count 18 --lanes 1 --verbose
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from provoked import Case, cases
from provoking import MEASURED, Ended, Lane

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_PRIVATE, MS_REC = 1 << 18, 1 << 14
NOT_PERMITTED = 77
CORNER = "expected, given"


def run_here(case: Case) -> Ended:
    """Run a case in a lane of its own, on a small disk if it has one."""
    lane = Lane()
    try:
        lane.warm()
        with tempfile.TemporaryDirectory() as folder, small_disk(folder, case.disk_bytes):
            ended = lane.run(case, Path(folder))
    finally:
        left_count = lane.close()
    return replace(ended, orphan_count=left_count)


def run_in_namespace(case: Case) -> Ended | None:
    """Run a case in a process with a network and mounts of its own; None if that is not allowed."""
    command = [sys.executable, __file__, "--in-namespace", case.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == NOT_PERMITTED:
        return None
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stderr}")
    return Ended(case, **json.loads(done.stdout.splitlines()[-1]))


def enter_namespace() -> None:
    """Leave the machine's network and mounts for some of our own; ends if that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = libc.unshare(CLONE_NEWNS | CLONE_NEWNET) == 0
    if not own or libc.mount(b"", b"/", None, MS_PRIVATE | MS_REC, None) != 0:
        raise SystemExit(NOT_PERMITTED)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@contextmanager
def small_disk(folder: str, size_bytes: int | None) -> Iterator[None]:
    """Mount a disk of this size over a folder."""
    if size_bytes is None:
        yield
        return
    size = f"size={size_bytes}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def work_off(waiting: "SimpleQueue[Case | None]", verbose: bool) -> list[Ended | Case]:
    """Run cases until there are no more; gives those that could not be run as they are."""
    lane, done = Lane(), list[Ended | Case]()
    lane.warm()
    while case := waiting.get():
        if case.namespace:
            ended = run_in_namespace(case)
        elif case.outside == "lose the launcher":
            ended = run_here(case)
        else:
            with tempfile.TemporaryDirectory() as folder:
                ended = lane.run(case, Path(folder))
        done.append(ended or case)
        if verbose and ended:
            print(f"{ended.wall_s:6.2f} s  {case.name}\n{'':10}{ended.given}: {ended.message}")
    left_count = lane.close()
    if left_count:
        raise SystemExit(f"{left_count} processes outlived their launcher")
    return done


def table(ended: Sequence[Ended]) -> str:
    """Kinds given by kinds expected."""
    counts = Counter((one.case.kind.value, one.given) for one in ended)
    expected = sorted({kind for kind, _ in counts})
    given = sorted({kind for _, kind in counts})
    width = max(map(len, [*expected, CORNER])) + 2
    lines = [f"{CORNER:<{width}}" + "".join(f"{kind:>16}" for kind in given)]
    for kind in expected:
        row = "".join(f"{counts[kind, other] or '.':>16}" for other in given)
        lines.append(f"{kind:<{width}}{row}")
    return "\n".join(lines)


def spread(all_cases: Sequence[Case], count: int) -> list[Case]:
    """So many cases, evenly from the whole list, the list again when it is too short."""
    rounds, rest = divmod(count, len(all_cases))
    picked = [all_cases[number * len(all_cases) // rest] for number in range(rest)]
    return [*all_cases] * rounds + picked


def main() -> int:
    parser = argparse.ArgumentParser(description="Provoked failures, and how they are understood.")
    parser.add_argument("--count", type=int, help="cases to run, instead of each one once")
    parser.add_argument("--quick", action="store_true", help="leave out cases that take longest")
    parser.add_argument("--lanes", type=int, default=3, help="launchers at work at a time")
    parser.add_argument("--verbose", action="store_true", help="print each case as it ends")
    parser.add_argument("--in-namespace", metavar="CASE", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.in_namespace:
        enter_namespace()
        ended = run_here(next(case for case in cases() if case.name == asked.in_namespace))
        names = ("given", "message", "orphan_count", "wall_s")
        print(json.dumps({name: getattr(ended, name) for name in names}))
        return 0
    from_all = [case for case in cases() if case.is_quick or not asked.quick]
    picked = spread(from_all, asked.count or len(from_all))
    return report(*provoke(picked, asked.lanes, asked.verbose))


def provoke(
    picked: Sequence[Case], lanes: int, verbose: bool
) -> tuple[list[Ended], list[Case], float]:
    """Run cases in several lanes; gives those that ran, those that could not, and the seconds."""
    started = time.perf_counter()
    waiting: SimpleQueue[Case | None] = SimpleQueue()
    for case in (*picked, *([None] * lanes)):
        waiting.put(case)
    with ThreadPoolExecutor(lanes) as workers:
        results = [workers.submit(work_off, waiting, verbose) for _ in range(lanes)]
        done = [one for result in results for one in result.result()]
    ended = [one for one in done if isinstance(one, Ended)]
    not_run = [one for one in done if isinstance(one, Case)]
    return ended, not_run, time.perf_counter() - started


def report(ended: Sequence[Ended], not_run: Sequence[Case], wall_s: float) -> int:
    """Print what came of it; gives the exit status."""
    wrong = [one for one in ended if not one.is_right]
    print(table(ended))
    for case in not_run:
        print(f"not run, namespaces are not permitted here: {case.name}")
    for one in wrong:
        print(f"WRONG: {one.case.name}: expected {one.case.kind}, given {one.given}: {one.message}")
    unclassified = sum(one.given == MEASURED or not one.message for one in ended)
    orphan_count = sum(one.orphan_count for one in ended)
    print(
        f"{len(ended)} failures provoked in {wall_s:.0f} s: {unclassified} unclassified, "
        f"{sum(one.given != one.case.kind for one in ended)} of a wrong kind, "
        f"{orphan_count} orphan processes, {len(not_run)} not run"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
