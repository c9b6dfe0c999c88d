import json
import subprocess
import sys

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
print("went on")
"""


@pytest.fixture
def limited():
    def run(limit_s, sleep_s, *folder):
        return subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM, str(limit_s), str(sleep_s), *map(str, folder)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_what_takes_too_long_is_ended_and_leaves_its_name_its_stack_and_an_error(limited, tmp_path):
    ended = limited(0.1, 60, tmp_path)

    assert ended.returncode == TIMED_OUT
    assert ended.stderr.startswith("rank 3: broadcast 4 B: no end after 0.1 s\n")
    assert "in stuck_here" in ended.stderr
    told = json.loads((tmp_path / "rank3.error.json").read_text())
    assert told["phase"] == "timed"
    assert told["message"] == "broadcast 4 B: no end after 0.1 s"


def test_without_a_folder_no_file_is_left(limited, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert limited(0.1, 60).returncode == TIMED_OUT
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_does_not_keep_the_process_alive(limited, tmp_path):
    ended = limited(0.1, 60, tmp_path / "gone")

    assert ended.returncode == TIMED_OUT
    assert "no end after" in ended.stderr


def test_what_ends_in_time_goes_on_after_the_limit(limited, tmp_path):
    ended = limited(1, 0, tmp_path)

    assert (ended.returncode, ended.stdout) == (0, "went on\n")
    assert list(tmp_path.iterdir()) == []
