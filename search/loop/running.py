"""What runs of a study now: how far each launch is, the end of its log, and the time left.

Launches are read from the working folder of the study, so any process on the machine can follow
them. A job writes there what it likes: all of it is limited, and nothing is followed out of it.
"""

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from evaluator.launchers.watch import HEAD_BYTES
from evaluator.rank.protocol import COMMAND_LOG, Phase, RankFile
from records.errors import StudyError
from records.study import Study
from records.trial import CONTEXTS_FOLDER, History, Outcome, Repeat
from search.loop.budget import CLOSING_S, MORE_TIME, launches_used
from search.loop.leader import took_turns

MOST_LAUNCHES = 8
LOGS = (COMMAND_LOG, RankFile.LOG.of(0))
READ_BYTES = 1 << 16
"""What is searched for secrets before the last lines are shown: a secret may begin above them."""
BEATS_BYTES = 1 << 12
MOST_LINES, LINE_CHARS = 20, 200
MOST_STEP = 10**9
LATER = "[what was printed later is shown when the launch has ended]"
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TRIAL_FOLDER = re.compile(r"trial([0-9]{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLaunch:
    """One launch: the phase and the step that its first rank entered last, and the end of its log.

    `ordinal` is its trial where several run in parallel. `step` counts from 1 over all phases; it
    is None before the first, and for a script that does not report them.
    """

    ordinal: int | None
    phase: Phase | None
    step: int | None
    elapsed_s: float
    log_name: str | None
    log: tuple[str, ...]


def most_steps(study: Study) -> int | None:
    """Return the most steps that a launch of a study runs; None where that is not known."""
    measure = study.measure
    if study.launch.recipe == "collectives":
        return None
    timed = measure.timed_steps
    if study.launch.recipe == "builtin":
        timed = max(timed, measure.max_timed_steps)
    return measure.warmup_steps + timed + measure.profiled_steps


def running_launches(workdir: Path, scrub: Callable[[str], str]) -> tuple[RunningLaunch, ...]:
    """Return the launches in the working folder of a study; `scrub` removes secrets from logs."""
    with suppress(OSError):
        folders = sorted(_launch_folders(workdir))[:MOST_LAUNCHES]
        found = (_running(folder, scrub) for folder in folders)
        return tuple(launch for launch in found if launch is not None)
    return ()  # a launch has just ended, and its folder with it


def _launch_folders(workdir: Path) -> Iterator[Path]:
    """Yield the folder itself if a launch has files in it, else those in it."""
    entries = [*os.scandir(workdir)]
    if any(entry.is_file(follow_symlinks=False) for entry in entries):
        yield workdir
    else:
        yield from (Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))


def _running(folder: Path, scrub: Callable[[str], str]) -> RunningLaunch | None:
    begun = {path: at for path in (folder, *_contexts(folder)) if (at := _begun_s(path))}
    if not begun:
        return None
    latest = max(begun, key=lambda path: begun[path])
    phase, step = _last_beat(latest / RankFile.PROGRESS.of(0))
    logs = {name: log_tail(latest / name, scrub) for name in LOGS}
    name = next((name for name in LOGS if logs[name]), None)
    trial = _TRIAL_FOLDER.fullmatch(folder.name)
    return RunningLaunch(
        ordinal=int(trial[1]) if trial else None,
        phase=phase,
        step=step,
        elapsed_s=max(0.0, time.time() - begun[latest]),
        log_name=name,
        log=() if name is None else logs[name],
    )


def _contexts(folder: Path) -> list[Path]:
    """Return the folders of the other contexts of a trial, which are launched one by one."""
    path = folder / CONTEXTS_FOLDER
    if path.is_symlink() or not path.is_dir():
        return []
    with os.scandir(path) as entries:
        return [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]


def _begun_s(folder: Path) -> float | None:
    """Return when a launch began: its oldest file was written just before."""
    with os.scandir(folder) as entries:
        files = (each for each in entries if each.is_file(follow_symlinks=False))
        return min((each.stat(follow_symlinks=False).st_mtime for each in files), default=None)


def _last_beat(path: Path) -> tuple[Phase | None, int | None]:
    """Return the phase and the step that a rank entered last."""
    phase: Phase | None = None
    for line in reversed(_end_of(path, BEATS_BYTES).splitlines()):
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            beat = json.loads(line)
            phase = phase or Phase(beat["phase"])
            step = beat["step"]
            if type(step) is int and 0 <= step < MOST_STEP:
                return phase, step + 1
    return phase, None


def log_tail(path: Path, scrub: Callable[[str], str]) -> tuple[str, ...]:
    """Return the last whole lines of a log, without secrets and colours, cut to a fixed length.

    Of a line that was overwritten, as progress bars are, only the last state is returned.
    """
    text = _COLOURS.sub("", _end_of(path, READ_BYTES)).replace("\r\n", "\n")
    *whole, rest = scrub(text).split("\n")
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in whole]
    lines.append(rest.rpartition("\r")[0].rpartition("\r")[2])
    shown = [line.rstrip()[:LINE_CHARS] for line in lines if line.strip()][-MOST_LINES:]
    with suppress(OSError):
        if path.lstat().st_size >= HEAD_BYTES:
            shown = [*shown[1:], LATER]
    return tuple(shown)


def _end_of(path: Path, most_bytes: int) -> str:
    """Return the end of a regular file from a line's start on; empty where there is none."""
    with suppress(OSError):
        # The job may put a link or a pipe in the place of any file.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                return ""
            start = max(0, found.st_size - most_bytes)
            file.seek(start)
            text = file.read(most_bytes).decode("utf-8", "replace")
            return text if not start else text.partition("\n")[2]
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """What a search may still launch, and the mean of what `launch_count` launches took."""

    trials: int
    most_repeats: int
    launch_s: float
    launch_count: int

    @property
    def least_s(self) -> float:
        """Time for the trials alone."""
        return self.trials * self.launch_s

    @property
    def most_s(self) -> float:
        """Time for all launches."""
        return (self.trials + self.most_repeats) * self.launch_s


def time_left(study: Study, history: History, repeats: Sequence[Repeat]) -> TimeLeft | None:
    """Return what a search may still launch; None while no launch has shown how long one takes."""
    took_s = [*_launch_seconds(history, repeats)]
    if not took_s:
        return None
    budget, measure = study.budget, study.measure
    trials = max(0, budget.trials - history.launched_count)
    launches = max(trials, budget.launch_limit - launches_used(history, repeats))
    is_repeated = measure.confirm_rounds or measure.race_rounds or measure.self_test_rounds
    return TimeLeft(
        trials=trials,
        most_repeats=launches - trials if is_repeated else 0,
        launch_s=fmean(took_s),
        launch_count=len(took_s),
    )


def check_allocation(
    left_s: float | None, study: Study, history: History, repeats: Sequence[Repeat]
) -> None:
    """Raise `StudyError` where an allocation that ends in `left_s` has no time for one trial."""
    so_far = time_left(study, history, repeats)
    trial_s = 0.0 if so_far is None else so_far.launch_s
    if left_s is None or left_s > CLOSING_S + trial_s:
        return
    takes = "" if so_far is None else f"one launch takes {trial_s:.3g} s by those so far, and "
    raise StudyError(
        f"the allocation ends in {max(0.0, left_s):.0f} s, too soon for one trial: {takes}"
        f"{CLOSING_S:g} s are kept to record the result; nothing was launched: {MORE_TIME}"
    )


def _launch_seconds(history: History, repeats: Iterable[Repeat]) -> Iterator[float]:
    """Yield what each launch took; launches that took turns share the time of their round."""
    yield from filter(None, (_wall_s(trial.outcome) for trial in history))
    together: dict[tuple[int, str, int], list[float]] = {}
    for repeat in repeats:
        took_s = _wall_s(repeat.outcome)
        if took_s is not None and took_turns(repeat.outcome):
            key = repeat.series, repeat.purpose, repeat.round
            together.setdefault(key, []).append(took_s)
        elif took_s is not None:
            yield took_s
    for each in together.values():
        yield from [max(each) / len(each)] * len(each)


def _wall_s(outcome: Outcome) -> float | None:
    """Return how long a launch took, in all contexts of a study; None where that is unknown."""
    outcomes = [one.outcome for one in outcome.contexts] or [outcome]
    took_s = [one.launched.wall_s for one in outcomes if one.launched is not None]
    return sum(took_s) if took_s else None
