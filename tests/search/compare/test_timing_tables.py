"""Tables of timings line up, tell how far to trust each cell, and colour what may be the best."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text
from torch.utils import benchmark
from torch.utils.benchmark.utils import common as torch_common

from evaluator.timing.timing import LaunchTimes, Task, Timing
from search.compare import timer_view as tables
from search.compare.timer_view import Look, print_timings, timing_tables

GOLDEN = Path(__file__).parent / "golden" / "timing_tables.txt"
SHARES = (-1.6, -1.1, -0.7, -0.3, 0.0, 0.2, 0.6, 1.2, 1.7)
ALL = Look(trim_figures=True, highlight_warnings=True)


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


def test_the_tables_are_those_of_the_golden_file(tmp_path):
    shown = [str(table) for look in (Look(), ALL) for table in timing_tables(SUITE, look)]
    actual = tmp_path / GOLDEN.name
    actual.write_text("\n\n".join(shown) + "\n", encoding="utf-8")

    seen, expected = (path.read_text(encoding="utf-8") for path in (actual, GOLDEN))
    difference = difflib.unified_diff(
        expected.splitlines(), seen.splitlines(), str(GOLDEN), str(actual), lineterm=""
    )
    assert seen == expected, f"to accept: cp {actual} {GOLDEN}\n" + "\n".join(difference)


def test_rows_columns_and_medians_are_those_of_torch():
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
    theirs = benchmark.Compare(
        [
            torch_common.Measurement(
                number_per_run=t.number_per_run,
                raw_times=list(t.launches[0].raw_times_s),
                task_spec=torch_common.TaskSpec(
                    stmt=t.task.stmt,
                    setup=t.task.setup,
                    label=t.task.label,
                    sub_label=t.task.sub_label,
                    description=t.task.description,
                    env=t.task.env,
                    num_threads=t.task.num_threads,
                ),
            )
            for t in suite
        ]
    )
    (ours,) = timing_tables(suite)
    words = re.compile(r"\d\.\d|small|large|\(old\)|\(new\)|\d thread|\b[ab]\b|in seconds")

    assert words.findall(re.sub(r"\[\d.*?\]", "", ours.plain)) == words.findall(str(theirs))


def test_replicates_of_two_launches_show_both_and_no_interval():
    first = timing("a", 1.0, launches=["one"])
    second = timing("a", 1.1, launches=["two"])

    (table,) = timing_tables([first, second])

    assert "(1.0, 1.1) n=2" in table.plain
    assert "too few for an interval" in table.plain
    assert "[" not in table.plain.partition("thread")[2]


def test_the_legend_says_when_all_intervals_are_of_one_launch():
    (table,) = timing_tables([timing("a", 1.0), timing("b", 2.0)])

    assert "n=" not in table.plain
    assert "median within one launch, another may differ by more." in table.plain


def test_a_trimmed_median_stays_in_its_interval():
    (table,) = timing_tables([timing("a", 1.25, 1.27, 1.23)], Look(trim_figures=True))

    assert timing("a", 1.25, 1.27, 1.23).significant_figures == 1
    assert "1.25 [1.20, 1.30] n=3" in table.plain


def test_a_sample_alone_has_no_interval_and_no_legend():
    (table,) = timing_tables([single("a", 2.0)], ALL)

    assert table.plain.splitlines()[-3:] == ["  x @ y  2.0", "", "Times are in seconds (s)."]


def test_an_environment_that_nobody_named_comes_first():
    envs = ["b", None, "a"]

    (table,) = timing_tables([timing("a", 1.0, env=env) for env in envs])

    assert re.findall(r"\((a|b|unspecified)\)", table.plain) == ["unspecified", "a", "b"]


def test_one_environment_is_not_worth_a_word():
    (table,) = timing_tables([timing("a", 1.0, env="torch")])

    assert "torch" not in table.plain


def test_two_tasks_in_one_cell_are_refused():
    with pytest.raises(ValueError, match="two tasks; give them other sub_labels or descriptions"):
        timing_tables([timing("a", 1.0), timing("a", 1.0, setup="x = 1")])


def test_no_timings_make_no_table():
    assert timing_tables([]) == []


def test_control_characters_and_line_ends_cannot_tear_a_table():
    hostile = "a\nb\x1b[2J\tc"

    (table,) = timing_tables(
        [timing(hostile, 1.0, label=hostile, sub_label=hostile, env=env) for env in (hostile, "d")]
    )

    assert not any(ord(letter) < 32 for letter in table.plain.replace("\n", ""))
    assert len(table.plain.splitlines()) == 8


def test_wide_characters_count_as_wide():
    (table,) = timing_tables([single("a", 1.0, sub_label="核心"), single("a", 2.0, sub_label="ab")])

    assert [line for line in table.plain.splitlines() if ".0" in line] == [
        "  核心  1.0",
        "  ab    2.0",
    ]


def styles(suite: Sequence[Timing], compare: str) -> dict[str, str]:
    """Style of each cell by its median."""
    (table,) = timing_tables(suite, Look(compare=compare))
    cells = {table.plain[span.start : span.end].split()[0]: span.style for span in table.spans}
    return {cell: str(style) for cell, style in cells.items() if style}


def rows(*medians_s: float) -> list[Timing]:
    return [single("a", seconds, sub_label=f"row {seconds}") for seconds in medians_s]


def test_colours_tell_how_far_a_cell_is_from_the_best():
    assert styles(rows(1.0, 1.1, 1.2, 2.0, 4.9, 5.0), "columns") == {
        "1.0": "bold green",
        "1.1": "bold blue",
        "2.0": "dim red",
        "4.9": "dim red",
        "5.0": "red",
    }


def test_a_hundred_nanoseconds_are_no_difference():
    assert styles(rows(100e-9, 200e-9, 210e-9), "columns") == {
        "100.0": "bold green",
        "200.0": "bold green",
        "210.0": "dim red",
    }


def test_the_best_is_sought_among_as_many_threads_or_in_the_row():
    suite = [
        single("a", 1.0, num_threads=1),
        single("a", 3.0, num_threads=2),
        single("b", 6.0, num_threads=1),
        single("b", 9.0, num_threads=2),
    ]

    assert set(styles(suite, "columns").values()) == {"bold green"}
    assert styles(suite, "rows") == {
        "1.0": "bold green",
        "6.0": "red",
        "3.0": "bold green",
        "9.0": "dim red",
    }
    assert styles(suite, "nothing") == {}


def test_every_cell_whose_interval_meets_that_of_the_best_may_be_the_best():
    # Nine samples with a deviation of a tenth: their intervals meet up to a fifth apart.
    noisy = [timing("a", m, sd=0.1, sub_label=str(m), launches=[str(m)]) for m in (1.0, 1.2, 1.6)]

    assert styles(noisy, "columns") == {"1.0": "bold green", "1.2": "bold green"}


def test_launches_taken_together_are_compared_in_pairs():
    # Launches differ far more than the two do, but the second is a tenth slower in each.
    drifting = (1.0, 2.0, 3.0, 4.0)
    fast = timing("a", *drifting, sub_label="fast")
    slow = timing("a", *(1.2 * seconds for seconds in drifting), sub_label="slow")
    apart = replace(
        slow,
        launches=tuple(replace(group, launch=f"other {group.launch}") for group in slow.launches),
    )

    assert styles([fast, slow], "columns") == {"2.5": "bold green"}
    assert styles([fast, apart], "columns") == {"2.5": "bold green", "3.0": "bold green"}


def test_a_pipe_gets_plain_text(capsys):
    print_timings(SUITE, replace(ALL, compare="columns"))

    out = capsys.readouterr().out
    assert out == "\n\n".join(str(table) for table in timing_tables(SUITE, ALL)) + "\n"


def test_a_terminal_gets_colours(monkeypatch, capsys):
    monkeypatch.setattr(tables, "on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)

    print_timings(SUITE, Look(compare="columns"))

    out = capsys.readouterr().out
    assert "\x1b[1;32m" in out
    assert Text.from_ansi(out).plain.split() == " ".join(map(str, timing_tables(SUITE))).split()
