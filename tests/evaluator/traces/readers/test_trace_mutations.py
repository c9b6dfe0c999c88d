"""Traces of every format, damaged at random: what comes out is values that add up, or a refusal."""

import gzip
import json
import math
import sqlite3
from contextlib import closing, suppress
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.evaluate import diagnose
from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_all
from evaluator.traces.readers.files import ReadLimits
from evaluator.traces.readers.read import read_folder
from records.codec import from_json, to_json
from records.errors import TraceError
from records.trial import Diagnosis

LIMITS = ReadLimits(file_bytes=1 << 24, decompressed_bytes=1 << 24, event_count=10_000)

COLLECTIVE = {
    "Collective name": "allreduce",
    "In msg nelems": 4096,
    "Out msg nelems": 4096,
    "Group size": 2,
    "dtype": "Float",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
    "Seq": 3,
}
KERNEL = {"stream": 7, "correlation": 5, "blocks per SM": 0.5, "est. achieved occupancy %": 40}


def span(cat, name, start, duration, tid=7, pid=0, **args):
    event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
    return event | {"ts": 4_000_000.0 + start, "dur": duration, "args": args}


def named(what, name, pid, tid):
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


GPU = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "H100", "numSms": 132, "totalGlobalMem": 85017493504}],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1_775_078_550_000_000_000,
    "traceEvents": [
        span("user_annotation", "ProfilerStep#4", 0, 400.5, tid=11, pid=11),
        span("user_annotation", "ProfilerStep#5", 401, 400.5, tid=11, pid=11),
        span("gpu_user_annotation", "ProfilerStep#4", 10, 380.25),
        span("gpu_user_annotation", "ProfilerStep#5", 410, 380.25),
        span("cuda_runtime", "cudaLaunchKernel", 5, 3.2, tid=11, pid=11, correlation=5),
        span("cuda_runtime", "cudaDeviceSynchronize", 300, 90, tid=11, pid=11, correlation=9),
        span("kernel", "sm90_gemm", 10, 200.125, **KERNEL),
        span("kernel", "ncclDevKernel_AllReduce", 150, 200.5, tid=20, **KERNEL, **COLLECTIVE),
        span("gpu_memcpy", "Memcpy HtoD", 352, 8.5, bytes=65536, correlation=6, stream=31),
        span("gpu_memset", "Memset (Device)", 371, 1.5, bytes=512, correlation=8, stream=7),
        span("kernel", "fused_moe_kernel", 410, 300, **KERNEL),
        span("cpu_op", "aten::mm", 1, 12, tid=11, pid=11, **{"External id": 3}),
        {"ph": "s", "id": 5, "pid": 11, "tid": 11, "ts": 4_000_005, "cat": "ac2g", "name": "ac2g"},
        {"ph": "i", "name": "[memory]", "pid": 11, "tid": 11, "ts": 4_000_006, "s": "t",
         "args": {"Total Allocated": 4096, "Device Id": 0, "Device Type": 1, "Bytes": 512}},
    ],
}  # fmt: skip
CPU = {
    "distributedInfo": {"backend": "gloo", "rank": 1, "world_size": 2,
                        "pg_config": [{"pg_name": "", "pg_size": 2, "ranks": [0, 1]}]},
    "baseTimeNanoseconds": 1_775_078_550_000_000_000,
    "traceEvents": [
        named("thread_name", "thread 12 (pt_gloo_runloop)", 11, 12),
        span("user_annotation", "ProfilerStep#0", 0, 500, tid=11, pid=11),
        span("cpu_op", "aten::mm", 10, 100, tid=11, pid=11),
        span("cpu_op", "c10d::_reduce_scatter_base_", 60, 30, tid=11, pid=11,
             **{"Input Dims": [[64, 64], [128, 64]], "Input type": ["float", "float"]}),
        span("user_annotation", "step[DECODE bs=1]", 1, 5, tid=11, pid=11),
        span("user_annotation", "execute_context_1(2)_generation_0(0)", 7, 5, tid=11, pid=11),
        span("user_annotation", "gloo:all_reduce", 80, 200, tid=12, pid=11,
             **{"Input Dims": [[128, 64]], "Input type": ["float"]}),
        span("cpu_op", "aten::copy_", 120, 20, tid=12, pid=11),
    ],
}  # fmt: skip
XLA = {
    "displayTimeUnit": "ns",
    "metadata": {"highres-ticks": True},
    "traceEvents": [
        named("process_name", "/device:TPU:0", 3, 0),
        named("process_name", "/host:CPU", 9, 0),
        named("thread_name", "XLA Modules", 3, 1),
        named("thread_name", "XLA Ops", 3, 2),
        named("thread_name", "Steps", 3, 3),
        {"ph": "X", "pid": 3, "tid": 3, "ts": 1.0, "dur": 90.0, "name": "7"},
        {"ph": "X", "pid": 9, "tid": 1, "ts": 1.0, "dur": 9.0, "name": "$a.py:3 step"},
        {"ph": "X", "pid": 9, "tid": 2, "ts": 1.0, "dur": 90.0, "name": "train",
         "args": {"step_num": "7", "correlation_id": "3"}},
        {"ph": "X", "pid": 9, "tid": 2, "ts": 2.0, "dur": 9.0, "name": "add",
         "args": {"hlo_op": "add", "device_ordinal": "0"}},
        {"ph": "X", "pid": 9, "tid": 2, "ts": 3.0, "dur": 2.0, "name": "Rendezvous",
         "args": {"name": "global_devices=[0, 1]"}},
        {"ph": "X", "pid": 3, "tid": 1, "ts": 1.0, "dur": 90.0, "name": "jit_step_fun(12)",
         "args": {"run_id": "5"}},
        {"ph": "X", "pid": 3, "tid": 2, "ts": 2.0, "dur": 30.0, "name": "fusion.1",
         "args": {"hlo_category": "loop fusion", "model_flops": "1000", "bytes_accessed": "512",
                  "device_offset_ps": "2000000", "device_duration_ps": "30000000"}},
        {"ph": "X", "pid": 3, "tid": 2, "ts": 33.0, "dur": 20.0, "name": "all-reduce.3",
         "args": {"hlo_category": "all-reduce", "bytes_accessed": "41943040",
                  "long_name": "%all-reduce.3 = bf16[1024,5120]{1,0} all-reduce(bf16[1024,5120] "
                               "%x), channel_id=1, replica_groups={{0,1}}",
                  "device_offset_ps": "33000000", "device_duration_ps": "20000000"}},
        {"ph": "X", "pid": 3, "tid": 2, "ts": 60.0, "dur": 1.0, "name": "copy-start.4",
         "args": {"hlo_category": "copy-start"}},
        {"ph": "X", "pid": 3, "tid": 2, "ts": 70.0, "dur": 5.0, "name": "copy-done.4",
         "args": {"hlo_category": "copy-done"}},
        {},
    ],
}  # fmt: skip
NSYS = """
CREATE TABLE StringIds (id INTEGER, value TEXT);
INSERT INTO StringIds VALUES
  (1, 'sm90_gemm'), (2, 'ncclDevKernel_SendRecv'), (3, 'cudaLaunchKernel');
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.25.0');
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, smCount INTEGER, memoryBandwidth INTEGER);
INSERT INTO TARGET_INFO_GPU VALUES (0, 'H100', 132, 3350000000000);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
  contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER,
  blockX INTEGER, blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
  (1000, 5000, 0, 1, 7, 5, 281474976710656, 1, 1, 64, 1, 1, 128, 1, 1, 96),
  (4000, 9000, 0, 1, 20, 6, 281474976710656, 2, 2, 24, 1, 1, 544, 1, 1, 96);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (9500, 9900, 0, 7, 8, 281474976710656, 4096, 1);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (500, 900, 281474993487872, 5, 3);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER,
  globalTid INTEGER, eventType INTEGER);
INSERT INTO NVTX_EVENTS VALUES (0, 10000, 'step 1', NULL, 281474993487872, 59);
"""
HOSTILE = (
    *(None, True, -1, 0, 7, 10**6, 2**31, 2**53 + 1, 2**62, 2**63, -(2**63), 10**30),
    *(0.0005, 1e-320, 1e15, 1e18, 1e308, -1e308, math.inf, -math.inf, math.nan),
    *("", "12", "-3.5", "1e999", "X", "kernel", "nccl", "ProfilerStep#", "ProfilerStep#-1"),
    *("ProfilerStep#99999999999999999999", "\0", "\ud800", "[0, 1", "[[9]]", "e" * 5000),
    *([], {}, [[]], [None], {"name": 3}, [[1 << 62, 1 << 62]], "$a step", "Rendezvous"),
)
VALUES = st.sampled_from(HOSTILE) | st.integers() | st.floats() | st.text(max_size=9)
WOUNDS = st.lists(st.tuples(st.integers(0, 10**6), st.booleans(), VALUES), min_size=1, max_size=5)
BYTES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3)
SQL_VALUES = st.sampled_from(
    (None, -1, 0, 2**63 - 1, -(2**63), 1.5e300, "text", b"\0\xff", 1 << 40)
)
QUICK = settings(max_examples=30)


def places(node):
    """Every (container, key) below a node, in order."""
    keys = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in list(keys):
        yield node, key
        yield from places(node[key])


def wounded(document, wounds):
    """A copy with values at some places replaced, or removed with their keys."""
    hurt = json.loads(json.dumps(document))
    for where, removed, value in wounds:
        every = list(places(hurt))
        if not every:
            break
        container, key = every[where % len(every)]
        if removed:
            del container[key]
        else:
            container[key] = deepcopy(value)
    return json.dumps(hurt).encode()


def overwritten(content, changes):
    hurt = bytearray(content)
    for where, value in changes:
        hurt[where % len(hurt)] = value
    return bytes(hurt)


def comes_to(path):
    """How many values a file gives, None when it is refused; anything else fails."""
    try:
        evidence = Evidence(traces=read_folder(path, limits=LIMITS, use_cache=False))
    except TraceError:
        return None
    values = measure_all(evidence).values
    assert all(math.isfinite(value.value) for value in values)
    for parts in evidence.split.parts if evidence.split else ():
        told = [parts.compute_ns, parts.exposed_communication_ns, parts.exposed_copy_ns]
        told += [parts.fill_ns, parts.idle_ns]
        assert np.all(np.array(told) >= 0)
        assert np.array_equal(sum(told), parts.window_ns)
    diagnosis = diagnose(evidence)
    if diagnosis is not None:
        assert from_json(Diagnosis, to_json(diagnosis)) == diagnosis
        assert all(min(one.exposed_s, one.hidden_s) >= 0 for one in diagnosis.collectives)
    return len(values)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "rank0_trace.json"


def test_what_is_damaged_here_gives_values_when_it_is_whole(file, tmp_path):
    for document in (GPU, CPU, XLA):
        file.write_text(json.dumps(document))
        assert comes_to(file) > 5
    file.unlink()
    assert comes_to(database(tmp_path, NSYS)) > 5


@settings(QUICK, max_examples=90)
@given(wounds=WOUNDS, document=st.sampled_from([GPU, CPU, XLA]))
def test_a_trace_with_other_values_is_measured_or_refused(wounds, document, file):
    file.write_bytes(wounded(document, wounds))

    comes_to(file)


@QUICK
@given(changes=BYTES, length=st.integers(1, 10**4), document=st.sampled_from([GPU, CPU, XLA]))
def test_a_trace_with_other_bytes_or_cut_short_is_measured_or_refused(
    changes, length, document, file
):
    file.write_bytes(overwritten(json.dumps(document).encode()[:length], changes))

    comes_to(file)


@QUICK
@given(changes=BYTES, kept=st.floats(0.2, 1.0))
def test_a_damaged_archive_is_measured_or_refused(changes, kept, file):
    packed = gzip.compress(json.dumps(GPU).encode())
    file.write_bytes(overwritten(packed[: int(kept * len(packed))], changes))

    comes_to(file)


@QUICK
@given(where=st.integers(0, 10**6), value=SQL_VALUES, renamed=st.booleans())
def test_a_database_with_other_values_or_columns_is_measured_or_refused(
    where, value, renamed, tmp_path
):
    path = database(tmp_path, NSYS)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        columns = connection.execute(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c"
        ).fetchall()
        table, column = columns[where % len(columns)]
        if renamed:
            connection.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO gone')
        else:
            with suppress(sqlite3.IntegrityError):  # SQLite itself refuses some values of a key
                connection.execute(f'UPDATE {table} SET "{column}" = ?', (value,))

    comes_to(path)


@QUICK
@given(changes=BYTES, length=st.integers(100, 10**5))
def test_a_database_with_other_bytes_or_cut_short_is_measured_or_refused(changes, length, tmp_path):
    path = database(tmp_path, NSYS)
    path.write_bytes(overwritten(path.read_bytes()[:length], changes))

    comes_to(path)


def database(folder, script):
    path = folder / "report.sqlite"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path
