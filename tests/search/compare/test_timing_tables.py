"""Tables of timings line up, tell how far to trust each cell."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from evaluator.timing.timing import LaunchTimes, Task, Timing
from search.compare.timer_view import print_timings

SHARES = (-1.6, -1.1, -0.7, -0.3, 0.0, 0.2, 0.6, 1.2, 1.7)


def timing(
    description: str | None,
    *medians_s: float,
    sd: float = 0.01,
    launches: Sequence[str] | None = None,
    **task: object,
) -> Timing:
    """A timing with one launch of nine samples for each median."""
    names = launches or [f"launch {number}" for number in range(len(medians_s))]
    return Timing(
        task=Task(**{"stmt": "x @ y", "description": description, "label": "matmul", **task}),
        number_per_run=10,
        launches=tuple(
            LaunchTimes(
                launch=name, raw_times_s=tuple(10 * median * (1 + sd * share) for share in SHARES)
            )
            for name, median in zip(names, medians_s, strict=True)
        ),
    )


def single(description: str | None, seconds: float, **task: object) -> Timing:
    """A timing of one sample."""
    return timing(description, seconds, sd=0.0, **task)


@pytest.fixture
def table(capsys):
    """Prints timings; gives what was printed."""

    def print_and_read(*timings: Timing) -> str:
        print_timings(timings)
        return capsys.readouterr().out.rstrip("\n")

    return print_and_read


SMALL, LARGE = {"sub_label": "64x64"}, {"sub_label": "1024x1024"}
SUITE = [
    timing("eager", 1.234e-3, 1.26e-3, 1.25e-3, **SMALL),
    timing("eager", 42.1e-3, 42.5e-3, 42.4e-3, **LARGE),
    timing("compiled", 0.987e-3, sd=0.2, **SMALL),
    timing("eager", 0.7e-3, num_threads=2, env="torch 2.13", **SMALL),
    single("compiled", 22.7e-3, num_threads=2, **LARGE),
    timing("compiled", 0.51e-3, 0.52e-3, num_threads=2, env="torch 2.13", **SMALL),
    timing(None, 3.3e-6, label="copy", stmt="y.copy_(\n    x)"),
]


def test_the_tables_are_those_of_the_golden_file(table):
    golden = Path(__file__).parent / "golden" / "timing_tables.txt"

    assert table(*SUITE) == golden.read_text(encoding="utf-8").rstrip("\n")


def test_rows_columns_and_medians_are_those_of_torch(table):
    # Imported here: it takes seconds, which everybody who collects this file would pay.
    from torch.utils import benchmark
    from torch.utils.benchmark.utils import common as torch_common

    suite = [
        timing(column, seconds, sub_label=name, num_threads=threads, env=env)
        for seconds, (threads, env, name, column) in enumerate(
            [
                (4, "old", "small", "b"),
                (4, "new", "large", "a"),
                (1, "old", "small", "a"),
                (4, "new", "small", "a"),
                (1, "new", "large", "b"),
            ],
            start=1,
        )
    ]
    names = ("stmt", "setup", "label", "sub_label", "description", "env", "num_threads")
    theirs = benchmark.Compare(
        [
            torch_common.Measurement(
                number_per_run=t.number_per_run,
                raw_times=list(t.launches[0].raw_times_s),
                task_spec=torch_common.TaskSpec(**{name: getattr(t.task, name) for name in names}),
            )
            for t in suite
        ]
    )
    ours = table(*suite)
    words = re.compile(r"\d\.\d|small|large|\b[ab]\b|in seconds")

    assert words.findall(re.sub(r"\[\d.*?\]", "", ours)) == words.findall(str(theirs))


def test_a_sample_alone_has_no_interval_and_no_legend(table):
    shown = table(single("a", 2.0))

    assert shown.splitlines()[-3:] == ["x @ y  2.0", "", "Times are in seconds (s)."]


def test_two_tasks_in_one_cell_are_refused(table):
    with pytest.raises(ValueError, match="two tasks; give them other sub_labels or descriptions"):
        table(timing("a", 1.0), timing("a", 1.0, setup="x = 1"))


def test_control_characters_and_line_ends_cannot_tear_a_table(table):
    hostile = "a\nb\x1b[2J\tc"

    shown = table(
        *(timing(hostile, 1.0, label=hostile, sub_label=hostile, env=env) for env in (hostile, "d"))
    )

    assert not any(ord(letter) < 32 for letter in shown.replace("\n", ""))
    assert len(shown.splitlines()) == 7
