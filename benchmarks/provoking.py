"""Runs one provoked failure after another through a launcher of its own, and counts what is left.

The ranks are those of the built-in recipe, but they work on `misdeeds`, or a command is started.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from provoked import HANG_AFTER_S, MIB, Case

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.ports import Job
from evaluator.recipes.builtin import BuiltinRecipe
from records.study import Environment, Launch, Measure, Study
from records.trial import Config, Failed, FailureKind
from records.workload import Workload
from search.study.study_file import builtin_study

HERE = Path(__file__).parent
TWO_RANKS = Environment(
    name="bench", device="cpu", accelerator="cpu", world_size=2, ranks_per_node=2
)
DISK_BYTES = 64 * MIB
END_LIMIT_S = 5.0
MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a case ended: the kind that it was given, the first cause, and what was left of it."""

    case: Case
    given: str
    message: str
    orphan_count: int
    wall_s: float

    @property
    def is_right(self) -> bool:
        """Whether it was understood and left nothing behind."""
        return self.given == self.case.kind and not self.orphan_count


class Provoking(BuiltinRecipe):
    """The built-in recipe, with ranks that go wrong, or with a command in their place."""

    def __init__(self, case: Case, port: int) -> None:
        self._case = case
        self._port = port

    def job(self, study: Study, config: Config) -> Job:
        """Give the job of a case."""
        case, job = self._case, super().job(study, config)
        if case.command:
            argv = tuple(part.format(port=self._port) for part in case.command)
            return replace(job, argv=argv, files=case.files, modules=(), timeout_s=case.timeout_s)
        document = json.loads(job.files["job.json"]) | {"entry": "misdeeds:misbehave"}
        asked = {
            "what": case.what,
            "argument": case.argument,
            "ranks": case.ranks,
            "phase": "setup" if case.outside else case.phase,
        }
        return replace(
            job,
            files={"job.json": json.dumps(document), "misdeed.json": json.dumps(asked)},
            modules=("misdeeds",),
            timeout_s=case.timeout_s,
            hang_after_s=HANG_AFTER_S,
        )


class Lane:
    """A launcher of its own, whose processes are known by a mark in their environment.

    Jobs use all ranks of the `machine`, and see no more than `seen` of our environment.
    """

    def __init__(
        self, machine: Environment = TWO_RANKS, seen: Mapping[str, str] | None = None
    ) -> None:
        self._machine = machine
        self._mark = f"PROVOKED_BY={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        seen = seen or {"PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
        paths = os.pathsep.join(filter(None, (str(HERE), seen.get("PYTHONPATH"))))
        environment = {**seen, "PYTHONPATH": paths, name: value}
        self._launcher = LocalLauncher(environment, 1, disk_bytes=DISK_BYTES)

    def run(self, case: Case, folder: Path) -> Ended:
        """Run a case in an empty folder."""
        before, started = self._processes(), time.perf_counter()
        with socket.socket() as used:
            used.bind(("", 0))
            used.listen()
            recipe = Provoking(case, used.getsockname()[1])
            evaluator = TrialEvaluator(recipe, self._launcher, self._intruder(case, folder))
            config = Config({"dp_replicate": self._machine.world_size})
            outcome = evaluator.evaluate(study_of(case, self._machine), config, folder)
        wall_s = time.perf_counter() - started
        message = outcome.message if isinstance(outcome, Failed) else ""
        given = outcome.kind.value if isinstance(outcome, Failed) else MEASURED
        return Ended(case, given, message, len(self._left(before)), wall_s)

    def warm(self) -> None:
        """Start what is kept between cases, so that it is not taken for a case's own."""
        with tempfile.TemporaryDirectory() as folder:
            self.run(Case(kind=FailureKind.CRASH, what="exit", argument=0), Path(folder))

    def close(self) -> int:
        """End the launcher; gives how many of its processes did not end with it."""
        self._launcher.close()
        return len(self._left(set()))

    def _intruder(self, case: Case, folder: Path):
        def on_phase(phase: str) -> None:
            if case.outside is None or phase != case.phase:
                return
            if case.outside == "lose the launcher":
                os.kill(min(self._processes()), signal.SIGKILL)
            else:
                pid = (folder / "rank1.pid").read_text(encoding="ascii")
                os.kill(int(pid), signal.Signals[case.outside])

        return on_phase

    def _left(self, before: set[int]) -> set[int]:
        """Processes of a case that have not ended after a moment."""
        deadline = time.monotonic() + END_LIMIT_S
        while (left := self._processes() - before) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def _processes(self) -> set[int]:
        return marked_processes(self._mark)


def marked_processes(mark: str) -> set[int]:
    """Living processes that were started with this variable and value in their environment."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked
            if mark.encode() in (path / "environ").read_bytes():
                found.add(int(path.name))
    return found


def study_of(case: Case, machine: Environment) -> Study:
    workload = Workload(
        name="sums",
        layer_count=2,
        hidden_size=32,
        head_count=2,
        kv_head_count=2,
        ffn_size=64,
        vocab_size=64,
        sequence_length=32,
        global_batch=8,
    )
    profiled = case.profiled or case.phase == "profile"
    return replace(
        builtin_study(machine),
        workload=workload,
        measure=Measure(warmup_steps=1, timed_steps=5, profiled_steps=int(profiled)),
        launch=Launch(memory_budget_bytes=case.memory_budget_bytes),
    )
