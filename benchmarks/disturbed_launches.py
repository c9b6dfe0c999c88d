"""By how much other processes slow launches, against the most that a search assumes.

Each round launches the same two ranks beside no, one, two and four processes that compute, some of
them only half of the time, in a random order. The limit of a launch is what a search takes for
possible by the share of the cores that others used (`Conditions.largest_slowdown`); a launch beyond
it may be given up although it was fast. Two more columns show what smaller limits would cover.
With `--isolate`, launches have the priority that `cclsearch run --isolate` gives them.

    python benchmarks/disturbed_launches.py --rounds 12
    python benchmarks/disturbed_launches.py --rounds 12 --isolate
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from decision_recording import SLOWDOWN, launching, show_progress, small_study

from evaluator.launchers.local import ISOLATED
from records.machine import Conditions
from records.trial import Config, Measured

CONFIG = Config({"dp_replicate": 2, "micro_batch": 4, SLOWDOWN: 0})
COMPUTE = "while True: sum(range(10000))"
PARTLY = (
    "import time\nwhile True:\n t = time.monotonic()\n"
    " while time.monotonic() - t < {}: sum(range(1000))\n time.sleep({})"
)
HALF, QUARTER, TENTH = (PARTLY.format(s, 0.1 - s) for s in (0.05, 0.025, 0.01))
ORPHAN = '"$0" -c "$1" > /dev/null 2>&1 & echo $!'
LOADS = {
    "none": (),
    "a tenth of one": (TENTH,),
    "a quarter": (QUARTER,),
    "half of one": (HALF,),
    "one": (COMPUTE,),
    "two halves": (HALF, HALF),
    "two": (COMPUTE,) * 2,
    "four": (COMPUTE,) * 4,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="By how much other processes slow launches.")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--isolate", action="store_true")
    options = parser.parse_args()
    rounds, niceness = options.rounds, ISOLATED if options.isolate else 0
    study, draw = small_study(), Random(0)
    found = defaultdict[str, list[tuple[float, float, float]]](list)
    with launching(niceness) as evaluator:
        for number in range(rounds):
            show_progress(number, rounds, None)
            took: dict[str, tuple[float, Conditions]] = {}
            for name in draw.sample(list(LOADS), len(LOADS)):
                with beside(LOADS[name]), TemporaryDirectory() as folder:
                    outcome = evaluator.evaluate(study, CONFIG, Path(folder))
                if isinstance(outcome, Measured) and outcome.measurement.conditions:
                    times_s = outcome.measurement.step_times_s[0]
                    took[name] = statistics.median(times_s), outcome.measurement.conditions
            if "none" not in took:
                continue
            alone_s, _ = took["none"]
            for name, (time_s, conditions) in took.items():
                taken = (conditions.others_cpu_share or 0) + (conditions.steal_share or 0)
                found[name].append((taken, time_s / alone_s, conditions.largest_slowdown))
    print(file=sys.stderr)
    print("others          share  slowdown (median, most)  limit  beyond it  beyond 1/(1 - share)")
    for name, rows in found.items():
        shares, slowed, limits = zip(*rows, strict=True)
        beyond = sum(s > limit for s, limit in zip(slowed, limits, strict=True))
        plain = sum(s > 1 / (1 - share) for s, share in zip(slowed, shares, strict=True))
        print(
            f"{name:<14} {statistics.median(shares):6.0%} {statistics.median(slowed):11.2f}x "
            f"{max(slowed):8.2f}x {statistics.median(limits):10.2f}x {beyond:5} of {len(rows)} "
            f"{plain:9} of {len(rows)}"
        )


@contextmanager
def beside(programs: tuple[str, ...]) -> Iterator[None]:
    """Run these programs meanwhile, as others' processes: our own would count as the job's."""
    started = [
        int(subprocess.check_output(["sh", "-c", ORPHAN, sys.executable, program]))
        for program in programs
    ]
    try:
        yield
    finally:
        for process in started:
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
