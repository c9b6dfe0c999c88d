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
from tests.clusters.slurm_searches import STUDY
from tests.support.service import CCLSEARCH

LIMIT_S = 600.0
TRIALS = 3


class WholeSearch:
    """A search by a launcher with settings of `[cluster]`, in a folder of its own."""

    def __init__(self, folder, launcher, **cluster):
        self.folder, self.store, self.log = folder, folder / "store", folder / "search.log"
        self.launcher, self._begun_s = launcher, time.monotonic()
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in cluster.items()]
        text = STUDY.format(launcher=launcher, steps=20, folder=folder).partition("[cluster]\n")[0]
        text += "".join(["[cluster]\n", *lines])
        (folder / "study.toml").write_text(text, encoding="utf-8")

    def start(self, *words):
        """Start the search, or go on with it."""
        begin = ("run", "-c", "study.toml", "--strategy", "grid", "--trials", str(TRIALS))
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [CCLSEARCH, *(words or begin), "--store", str(self.store)],
                env={**os.environ, "HOME": str(self.folder)},
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

    def check_nothing_is_lost(self, event, record):
        """Every trial was measured once with the traces of all ranks, and no process is left."""
        history = self.history
        record(
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
