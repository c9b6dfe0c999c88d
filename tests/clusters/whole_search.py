"""A search as a process, of a study for two nodes, and what has to hold once it has ended."""

import json
import os
import re
import subprocess
import time
from collections import Counter
from contextlib import closing, suppress

import psutil

from records.store.store import Store
from records.trial import Measured
from tests.support.service import CCLSEARCH

LIMIT_S = 600.0
TRIALS = 3

# Two ranks on each of two nodes: gloo has to find its way from one node to the other.
STUDY = """\
name = "two-nodes"
[workload]
name = "decoder-2L"
layer_count = 2
hidden_size = 32
head_count = 2
kv_head_count = 2
ffn_size = 64
vocab_size = 64
sequence_length = 32
global_batch = 8
precision = "fp32"
[environment]
device = "cpu"
world_size = 4
ranks_per_node = 2
[measure]
warmup_steps = 1
timed_steps = {steps}
max_timed_steps = {steps}
profiled_steps = 2
timeout_s = 120.0
self_test_rounds = 0
race_rounds = 0
confirm_top = 0
confirm_rounds = 1
max_confirm_rounds = 1
[launch]
launcher = "{launcher}"
memory_budget_bytes = 536870912
[budget]
trials = 3
launches = 6
max_failures = 1
[cluster]
"""


class WholeSearch:
    """A search by a launcher with settings of `[cluster]`, in a folder of its own.

    `record` keeps what is found for the table of all tests.
    """

    def __init__(self, folder, launcher, record, **cluster):
        self.folder, self.store, self.log = folder, folder / "store", folder / "search.log"
        self.launcher, self._record, self._begun_s = launcher, record, time.monotonic()
        self.log.touch()
        self.write(steps=20, **cluster)

    def write(self, *, steps, **cluster):
        """Write the study file."""
        text = STUDY.format(launcher=self.launcher, steps=steps)
        lines = (f"{name} = {json.dumps(value)}\n" for name, value in cluster.items())
        (self.folder / "study.toml").write_text(text + "".join(lines), encoding="utf-8")

    @property
    def environment(self):
        return {**os.environ, "HOME": str(self.folder)}

    def command(self, *words):
        """What starts the search, or goes on with it."""
        study = str(self.folder / "study.toml")
        begin = ("run", "-c", study, "--strategy", "grid", "--trials", str(TRIALS))
        return [CCLSEARCH, *(words or begin), "--store", str(self.store)]

    def start(self, *words):
        """Start the search, or go on with it."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command(*words),
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def resume(self):
        return self.start("resume", self.id)

    def finish(self, process):
        """Wait until a search ends, and return its status."""
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(self.said) from None

    @property
    def said(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def id(self):
        """The study's id, once the search has said it."""
        self.until(lambda: re.search(r"^study (\S+):", self.said, re.MULTILINE))
        return re.search(r"^study (\S+):", self.said, re.MULTILINE).group(1)

    @property
    def history(self):
        with closing(Store(self.store)) as store:
            return list(store.history(self.id))

    def during_trial(self, ordinal):
        """Return when this many trials have ended and the next has begun."""
        self.until(lambda: len(re.findall(r"^trial \d+ ", self.said, re.MULTILINE)) >= ordinal)
        time.sleep(1)

    def until(self, fact, limit_s=LIMIT_S):
        """Wait until something holds."""
        deadline_s = time.monotonic() + limit_s
        while not fact():
            assert time.monotonic() < deadline_s, self.said
            time.sleep(0.1)

    def processes(self):
        """What agents and ranks of the search still run."""
        request = f"cclsearch-{self.id}-"
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if any(request in word for word in process.info["cmdline"] or ()):
                with suppress(psutil.NoSuchProcess):
                    found += [process, *process.children(recursive=True)]
        return [process for process in found if _runs(process)]

    def check_nothing_is_lost(self, event):
        """Every trial was measured once with the traces of all ranks, and no process is left."""
        history = self.history
        self._record(
            "counted",
            {
                "launcher": self.launcher,
                "accounts": "-",
                "event": event,
                "trials kept": sum(isinstance(trial.outcome, Measured) for trial in history),
                "launches": sum(trial.attempts for trial in history),
                "lost": "-",
                "jobs left": "-",
                "processes left": len(self.processes()),
                "seconds": round(time.monotonic() - self._begun_s),
            },
        )
        assert [trial.ordinal for trial in history] == list(range(TRIALS)), self.said
        for trial in history:
            assert isinstance(trial.outcome, Measured), self.said
        names = Counter(
            path.name[:5] for path in history[0].outcome.artifacts if "trace" in path.name
        )
        assert names == {f"rank{rank}": 1 for rank in range(4)}
        self.until(lambda: not self.processes(), limit_s=30)


def _runs(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
