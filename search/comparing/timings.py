"""Compares stored timings of statements, task by task."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace

from evaluator.timing.interval.decision import judge
from evaluator.timing.interval.judgement import Judgement
from evaluator.timing.interval.summary import summary_of
from evaluator.timing.interval.thresholds import Thresholds
from evaluator.timing.paired import Launch
from evaluator.timing.timing import Task, Timing, merge
from records.errors import StudyError
from search.comparing.compared import Comparisons, Party, Terms, corrected
from search.comparing.points import ONCE, UNPAIRED, Replicates, Turn, judged
from search.comparing.sides import Timings
from search.words.trial import one_line

NAME_CHARS = 200
NEXT = "time both in turns, four times or more, each turn under one launch name on both sides"


def compare_timings(a: Timings, b: Timings, terms: Terms) -> Comparisons:
    """Judge the tasks of B against those of A; one task on each side is compared by any name."""
    rule = terms.over(ONCE)
    of_a, of_b = _by_task(a.timings), _by_task(b.timings)
    if len(of_a) == len(of_b) == 1:
        of_b = dict(zip(of_a, of_b.values(), strict=True))
    each = (
        replace(
            judged(task_words(task), _replicates(timing), _replicates(of_b[task]), rule),
            screening=_screened(timing, of_b[task], terms.thresholds),
        )
        for task, timing in of_a.items()
        if task in of_b
    )
    lines = corrected(each, rule)
    if not lines:
        raise StudyError(
            f"{a.name} and {b.name} have no task in common ({task_words(next(iter(of_a)))}, for "
            f"example, and {task_words(next(iter(of_b)))}); give timings of the same tasks"
        )
    return Comparisons(
        a=Party(name=a.name),
        b=Party(name=b.name),
        quantity="time of a call",
        unit="s",
        lines=lines,
        rule=rule,
        only_a=tuple(task_words(task) for task in of_a if task not in of_b),
        only_b=tuple(task_words(task) for task in of_b if task not in of_a),
        next_steps=(NEXT,) if any(x.comparison.reason in UNPAIRED for x in lines) else (),
    )


def task_words(task: Task) -> str:
    """A task by what tells it from others in a table."""
    threads = f"{task.num_threads} threads" if task.num_threads > 1 else None
    words = (task.label, task.row_name, task.description, task.env, threads)
    return one_line(" ".join(word for word in words if word), NAME_CHARS)


def _by_task(timings: Iterable[Timing]) -> Mapping[Task, Timing]:
    return {timing.task: timing for timing in merge(timings)}


def _replicates(timing: Timing) -> Replicates:
    launches = {
        group.launch: Launch(
            value=statistics.median(group.raw_times_s) / timing.number_per_run,
            mean=statistics.fmean(group.raw_times_s) / timing.number_per_run,
        )
        for group in timing.launches
    }
    return Replicates(
        values=tuple(launch.value for launch in launches.values()),
        rounds={name: Turn(launch=launch) for name, launch in launches.items()},
    )


def _screened(a: Timing, b: Timing, thresholds: Thresholds) -> Judgement:
    return judge(summary_of(a.times), summary_of(b.times), thresholds, confirmation=False)
