"""Columns of a benchmark: their names and order, cells in files and on a terminal."""

import csv
import io
from dataclasses import replace

import pandas as pd

from evaluator.collective_bench.record import (
    COLUMNS,
    HEADER,
    row,
    terminal_header,
    terminal_row,
)
from evaluator.workloads.collectives.operations import Collective, Operation
from tests.evaluator.conftest import conditions
from tests.support.bench import record

EXPECTED = (
    "Collective,DType,ReduceOp,SendMsgSize(B),Ranks,DispatchMode,WarmupIters,MeasureIters,"
    "SyncInterval,LatAvg(us),LatMin(us),LatMax(us),BusBw(GB/s),DeviceType,DeviceName,CommAdapter,"
    "CommBackend,CommBackendVersion,TorchVersion,TorchCommsVersion,"
    "SchemaVersion,RunId,LaunchId,Block,Order,AlgBw(GB/s),LatMed(us),LatP25(us),LatP75(us),"
    "LatP99(us),Samples,SlowestRank,BwConvention,StartedAt,Load1,CpuPressure,StealPct,Host,Commit,"
    "Status,Reason"
)
BUSY = conditions(
    load_average=1.5, others_cpu_share=0.5, steal_share=0.25, cpu_pressure_share=0.125
)
BARRIER = Operation(collective=Collective.BARRIER, size_bytes=0)


def cells(of):
    return dict(zip(HEADER, row(of), strict=True))


def test_the_columns_are_these_in_this_order():
    assert ",".join(HEADER) == EXPECTED


def test_no_digit_is_lost_in_a_file():
    third = record(block_ns=((1000, 2000, 1000),))

    assert float(cells(third)["LatAvg(us)"]) == third.metrics.avg_time_us
    assert cells(third)["LatAvg(us)"] == repr(4000 / 30 / 1e3)


def test_what_does_not_exist_is_spelt_alike_everywhere():
    skipped = cells(record(BARRIER, block_ns=()))
    measured = cells(record(BARRIER))

    absent = ("ReduceOp", "DeviceName", "CommBackendVersion", "TorchCommsVersion", "Commit")
    assert {skipped[name] for name in (*absent, "LatAvg(us)", "Samples", "Load1")} == {"n/a"}
    assert {measured[name] for name in (*absent, "BusBw(GB/s)", "Reason")} == {"n/a"}
    assert (skipped["Status"], skipped["Reason"]) == ("skipped", "the library lacks it")


def test_conditions_are_told_in_shares_but_for_steal():
    told = cells(replace(record(), conditions=BUSY))

    assert (told["Load1"], told["CpuPressure"], told["StealPct"]) == ("1.5", "0.125", "25.0")


def test_rows_survive_a_csv_file_and_pandas():
    written = io.StringIO()
    skipped = record(block_ns=())
    odd = replace(skipped, point=replace(skipped.point, reason='a "quoted", odd reason'))
    csv.writer(written).writerows([HEADER, row(record()), row(odd)])
    written.seek(0)

    read = pd.read_csv(written, keep_default_na=False, dtype=str)

    assert tuple(read.columns) == HEADER
    assert tuple(read.iloc[0]) == row(record())
    assert tuple(read.iloc[1]) == row(odd)


def test_rows_of_a_terminal_stand_under_their_names_and_hide_no_small_number():
    header, shown = terminal_header(), terminal_row(record())

    assert header.split() == [column.name for column in COLUMNS if column.width is not None]
    assert shown.split() == [
        *("all_reduce", "float32", "sum", "1024", "2"),
        *("0.25", "0.2", "0.3", "4.10"),
    ]
    assert len(header) == len(shown)
    assert terminal_row(record(block_ns=())).endswith("n/a  skipped: the library lacks it")
    ends = [header.index(name) + len(name) for name in ("DType", "Ranks", "LatAvg(us)")]
    assert [shown[:end].split()[-1] for end in ends] == ["float32", "2", "0.25"]
