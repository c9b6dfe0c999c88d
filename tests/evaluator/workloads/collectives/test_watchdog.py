"""A point of a sweep that takes too long ends its process and says what it was doing."""

import json
from pathlib import Path

import pytest

from evaluator.workloads.collectives.sweep import TIMED_OUT

PROGRAM = """
import sys, time
from pathlib import Path
from evaluator.workloads.collectives.sweep import time_limit

def stuck_here():
    time.sleep(float(sys.argv[2]))

folder = Path(sys.argv[3]) if len(sys.argv) > 3 else None
with time_limit(float(sys.argv[1]), "broadcast 4 B", rank=3, folder=folder):
    stuck_here()
time.sleep(float(sys.argv[1]) + 0.1)
print("continued")
"""
SAID = "broadcast 4 B: no end after 0.1 s"


@pytest.fixture
def limited(warm_ranks, tmp_path_factory):
    """Runs a block for so long under a limit; gives its exit status and what it printed."""
    own = tmp_path_factory.mktemp("process")
    (own / "program.py").write_text(PROGRAM)

    def run(limit_s: float, sleep_s: float, *folder: Path) -> tuple[int, str]:
        program = [str(own / "program.py"), *map(str, (limit_s, sleep_s, *folder))]
        (status,) = warm_ranks.run(own, 1, program)
        return status, (own / "rank0.log").read_text()

    return run


@pytest.mark.parametrize("name", [None, "gone", "there"])
def test_what_takes_too_long_is_ended_and_leaves_its_name_its_stack_and_an_error(
    limited, tmp_path, name
):
    folder = tmp_path / "there"
    folder.mkdir()

    status, printed = limited(0.1, 60, *(tmp_path / each for each in (name,) if each))

    assert status == TIMED_OUT
    assert printed.startswith(f"rank 3: {SAID}\n")
    assert "in stuck_here" in printed
    errors = [json.loads(path.read_text()) for path in folder.iterdir()]
    told = [(error["phase"], error["message"]) for error in errors]
    assert told == ([("timed", SAID)] if name == "there" else [])


def test_what_ends_in_time_continues_after_the_limit(limited, tmp_path):
    assert limited(0.3, 0, tmp_path) == (0, "continued\n")
    assert list(tmp_path.iterdir()) == []
