import json
import subprocess
import sys
from pathlib import Path

from search import settings

ROOT = Path(__file__).parents[3]
FORKSERVER = (sys.executable, "-P", "-m", "evaluator.rank.forkserver")


def test_a_module_that_starts_a_thread_is_left_to_the_ranks(tmp_path):
    """Some builds of torch start one when its compiler is imported; no fork keeps a thread."""
    (tmp_path / "plain.py").write_text("print('plain')")
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )

    done = subprocess.run(
        [*FORKSERVER, "plain", "threaded", "plain"],
        env={**settings.trial_environment(), "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )

    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"pids": [], "error": None}]
    assert done.stderr.splitlines() == [
        "plain",
        "importing threaded starts a thread, which no fork keeps: ranks import it themselves",
        "plain",
    ]
