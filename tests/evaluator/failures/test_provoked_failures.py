import subprocess
import sys
from pathlib import Path

FAILURES = Path(__file__).parents[3] / "benchmarks" / "failures.py"
ASKED = ("--quick", "--count", "8", "--lanes", "1", "--verbose")


def test_failures_that_are_provoked_in_real_launches_are_understood_and_leave_nothing():
    done = subprocess.run(
        [sys.executable, FAILURES, *ASKED], capture_output=True, text=True, check=False
    )

    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "8 failures provoked" in told
    assert "0 unclassified, 0 of a wrong kind, 0 orphan processes, 0 not run" in told
