"""Stands for the process that searches a study: `acting.py STORE STUDY` does what a file says."""

import os
import signal
import sys
from pathlib import Path

store, study_id = Path(sys.argv[1]), sys.argv[2]
folder = store / "service" / "runs" / study_id
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with (folder / "starts").open("a") as file:
    file.write(f"{os.getpid()}\n")
(folder / "lock").write_text(str(os.getpid()))
sys.stdout.write('{"event": "study_started"}\n')
sys.stdout.flush()
act, _, words = (folder / "act").read_text().partition(" ")
if act == "wait":
    signal.pause()
elif act == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / "ignores").touch()
    while True:
        signal.pause()
elif act == "refuse":
    (folder / "refusal.txt").write_text(words)
elif act == "crash":
    sys.stderr.write(f"{words}\n")
    os.kill(os.getpid(), signal.SIGKILL)
elif act == "torn":
    sys.stdout.write('{"event": "tri')
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
