"""A queue with a scheduler that is told when to look, and processes that only act as searches."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from records.store.store import Store
from search.service.queue import RunTable, State, Submitted
from search.service.runner import Runner, Scheduler, no_deliveries, run_folder, table_path
from tests.support import records as testing

ACTING = Path(__file__).with_name("acting.py")
LIMIT_S = 60


def submission(study_id: str = "one", **facts: object) -> Submitted:
    """A study that is being submitted."""
    usual = {"environment": "lab", "devices": "gpus", "parallel_studies": 1, "submitted_by": "ci"}
    return Submitted(study_id=study_id, **{**usual, **facts})


@dataclass
class Queue:
    """A store with a queue; `tick` is what the scheduler does at each turn."""

    root: Path
    deliveries_for: Callable = no_deliveries
    store: Store = field(init=False)
    table: RunTable = field(init=False)
    scheduler: Scheduler = field(init=False)
    runners: list[Runner] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = Store(self.root)
        self.table = RunTable(table_path(self.root))
        self.restart()

    def restart(self) -> None:
        """Another service on the same store, as after a kill: it knows what is on disk."""
        self.runners.append(Runner(self.root, {}, program=("-S", "-E", str(ACTING))))
        self.scheduler = Scheduler(
            self.root, deliveries_for=self.deliveries_for, runner=self.runners[-1]
        )

    def submit(self, study_id: str, act: str = "wait", devices: str = "gpus") -> None:
        self.store.create(study_id, testing.study(), "test", status="queued")
        self.act(study_id, act)
        self.table.add(submission(study_id, devices=devices))
        self.table.change_from(study_id, State.PENDING, State.QUEUED)

    def act(self, study_id: str, act: str) -> None:
        run_folder(self.root, study_id).mkdir(parents=True, exist_ok=True)
        (run_folder(self.root, study_id) / "act").write_text(act)

    def tick(self) -> None:
        self.scheduler.tick(self.table, self.store)

    def until(self, fact: Callable[[], object]) -> None:
        """Look until it is so."""
        end = time.monotonic() + LIMIT_S
        while not fact():
            assert time.monotonic() < end, self.table.under_way()
            self.tick()
            time.sleep(0.005)

    def until_over(self, study_id: str) -> Submitted:
        self.until(lambda: self.found(study_id).state.is_over)
        return self.found(study_id)

    def until_acts(self, study_id: str) -> int:
        """Look until its process acts; gives that."""
        lines = run_folder(self.root, study_id) / "events.jsonl"
        self.until(lambda: lines.exists() and lines.read_bytes().endswith(b"}\n"))
        return self.starts(study_id)[-1]

    def found(self, study_id: str) -> Submitted:
        return self.table.find(study_id)

    def starts(self, study_id: str) -> list[int]:
        """Every process that was started for a study."""
        path = run_folder(self.root, study_id) / "starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def close(self) -> None:
        for runner in self.runners:
            for process in runner._children:
                process.kill()
                process.wait(LIMIT_S)
        self.table.close()
        self.store.close()


def alive(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
