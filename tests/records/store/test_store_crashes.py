"""The benchmark that kills writers, on a small scale: nothing is ever lost or torn."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "store_crashes.py"


def test_writers_that_are_killed_at_random_instants_lose_and_tear_nothing():
    command = [sys.executable, str(BENCHMARK), "--kills", "2", "--seed", "1", "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert {name: tally["kills"] for name, tally in told.items()} == {
        "append": 2,
        "gc": 2,
        "import": 2,
        "rebuild": 2,
    }
    assert [tally["faults"] for tally in told.values()] == [[]] * 4
