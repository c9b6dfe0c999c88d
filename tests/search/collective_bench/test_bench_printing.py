"""The table of a benchmark: headings where something new begins, and a warning at the end."""

from dataclasses import replace

import pytest

from evaluator.collective_bench.record import terminal_header, terminal_row
from evaluator.workloads.collectives.operations import Collective, Operation
from records.machine import Conditions
from search.collective_bench.run import Table, heading
from tests.support.bench import record

QUIET = Conditions(
    load_average=0.0,
    others_cpu_share=0.0,
    steal_share=0.0,
    cpu_pressure_share=None,
    memory_pressure_share=None,
    io_pressure_share=None,
    available_memory_bytes=None,
    cpu_clock_hz=None,
    cpu_temperature_celsius=None,
)
BARRIER = Operation(collective=Collective.BARRIER, size_bytes=0)


@pytest.mark.parametrize(
    ("collective", "words"),
    [
        ("all_reduce", "=== AllReduce Performance ==="),
        ("reduce_scatter_single", "=== ReduceScatterSingle Performance ==="),
        ("barrier", "=== Barrier Performance ==="),
    ],
)
def test_a_heading_has_the_collective_in_camel_case(collective, words):
    assert heading(collective) == words


def test_what_is_new_stands_above_a_row_and_nothing_twice(capsys):
    rows = [record(), record(), record(BARRIER), record(round_=1)]
    table = Table()
    for row in rows:
        table.add(row)
    table.end_launch()

    facts = (
        "c10d on gloo, cpu n/a, torch 2.13.0, sync, warmup 5, iters 20, sync interval 10, "
        "bandwidth by nccl-tests, round {} of 1"
    )
    assert capsys.readouterr().out.splitlines() == [
        facts.format(1),
        *("", heading("all_reduce"), terminal_header()),
        *(terminal_row(rows[0]), terminal_row(rows[1])),
        *("", heading("barrier"), terminal_header(), terminal_row(rows[2]), ""),
        facts.format(2),
        *("", heading("all_reduce"), terminal_header(), terminal_row(rows[3]), ""),
    ]


@pytest.mark.parametrize(
    ("conditions", "warning"),
    [
        (None, ""),
        (QUIET, ""),
        (
            replace(QUIET, others_cpu_share=0.5),
            "note: while c10d ran, other processes used 50% of the cores\n",
        ),
    ],
)
def test_a_machine_that_was_busy_with_other_things_is_warned_of(capsys, conditions, warning):
    table = Table()
    table.add(replace(record(), conditions=conditions))
    table.end_launch()

    assert capsys.readouterr().err == warning


def test_a_table_without_rows_prints_nothing(capsys):
    Table().end_launch()

    assert capsys.readouterr() == ("", "")
