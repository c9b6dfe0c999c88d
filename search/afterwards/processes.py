"""Computes metrics of many trials, in processes side by side where that pays."""

import os
import signal
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

from evaluator.metrics.base import Metric
from evaluator.metrics.definitions import definitions
from evaluator.rank.confinement import die_with
from records.artifacts import Artifacts
from search.afterwards.computing import Answer, Work, answered

ENDED = "the process that computed it ended on its own, as happens when memory runs out"
# What is computed in the time that a process takes to start.
_WORTH_A_PROCESS_BYTES = 8 << 20
_WORTH_A_PROCESS_COUNT = 2000
_MOST_PROCESSES = 16


def answers(
    works: Sequence[Work],
    metrics: Mapping[str, Metric],
    artifacts: Path,
    metrics_file: Path | None,
) -> Generator[Answer, None, None]:
    """The answer to each, in the order in which they are ready.

    `metrics` are by name, and those of the file among them; processes read it again.
    `artifacts` is the folder of the files that trials left. Every process ends with this iterator.
    Where one is killed the trial that it had says so, and the others go on.
    """
    count = _process_count(works)
    if count == 1:
        for work in works:
            yield _answer(work, metrics, artifacts)
        return
    waiting, idle = iter(works), [_Process(artifacts, metrics_file) for _ in range(count)]
    busy: dict[object, _Process] = {}
    try:
        while True:
            while idle and (following := next(waiting, None)) is not None:
                process = idle.pop()
                process.begin(following)
                busy[process.connection] = process
            if not busy:
                return
            for connection in wait([each.connection for each in busy.values()]):
                process = busy.pop(connection)
                answer = process.answer()
                if answer is None:
                    process.end()
                    answer, process = process.lost(), _Process(artifacts, metrics_file)
                idle.append(process)
                yield answer
    finally:
        for process in (*idle, *busy.values()):
            process.end()


class _Process:
    """A process that computes on request; it dies with this one."""

    def __init__(self, artifacts: Path, metrics_file: Path | None) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._work: Work | None = None
        self._process = context.Process(
            target=_serve, args=(theirs, artifacts, metrics_file, os.getpid()), daemon=True
        )
        self._process.start()
        theirs.close()

    def begin(self, work: Work) -> None:
        """Have it computed; the answer can be received when it is."""
        self._work = work
        with suppress(OSError):  # the missing answer tells
            self.connection.send(work)

    def answer(self) -> Answer | None:
        """The answer; None when the process has ended on its own."""
        try:
            received = self.connection.recv()
        except (EOFError, OSError):
            return None
        return received if isinstance(received, Answer) else None

    def lost(self) -> Answer:
        """What to tell of the trial that it had."""
        assert self._work is not None
        return Answer(
            study_id=self._work.study_id,
            ordinal=self._work.ordinal,
            absent={},
            unread=dict.fromkeys(self._work.names, ENDED),
        )

    def end(self) -> None:
        """Kill it, whatever it does."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self.connection.close()


def _serve(connection: Connection, artifacts: Path, metrics_file: Path | None, parent: int) -> None:
    """Answer until nobody asks; die with the process that asks, and before it if memory ends."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who pressed Ctrl-C means the process that asks
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    metrics = {each.metric.name: each.metric for each in definitions(metrics_file).known}
    with suppress(EOFError):
        while True:
            connection.send(_answer(connection.recv(), metrics, artifacts))


def _answer(work: Work, metrics: Mapping[str, Metric], artifacts: Path) -> Answer:
    return answered(work, [metrics[name] for name in work.names], Artifacts(artifacts))


def _process_count(works: Sequence[Work]) -> int:
    """How many processes pay; 1 where all is computed in the time that one takes to start."""
    kept_bytes = sum(each.size_bytes for work in works for each in work.outcome.artifacts)
    if kept_bytes < _WORTH_A_PROCESS_BYTES and len(works) < _WORTH_A_PROCESS_COUNT:
        return 1
    return min(len(works), len(os.sched_getaffinity(0)), _MOST_PROCESSES)
