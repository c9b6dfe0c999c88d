"""`cclsearch trace merge`: one Chrome trace of all ranks, on one clock, from any traces."""

import gzip
import json
import shutil
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

TRACES = Path(__file__).parents[2] / "data" / "traces"
SYNTHETIC, GLOO = TRACES / "synth_fsdp_4rank_straggler2", TRACES / "gloo_ddp_2rank"


@pytest.fixture
def merged(cclsearch, tmp_path):
    """Merges traces; gives what ran, and the merged trace."""

    def run(traces, *options):
        to = tmp_path / "merged.json.gz"
        ended = cclsearch("trace", "merge", traces, "--no-cache", "-o", to, *options)
        assert (ended.code, ended.err) == (0, "")
        return ended.out, json.loads(gzip.decompress(to.read_bytes()), parse_constant=pytest.fail)

    return run


def rank_file(folder, rank, *events, base_ns=0, **fields):
    """Write the trace of a rank; events are JSON texts, or values."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in events]
    head = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2},
        "baseTimeNanoseconds": base_ns,
        **fields,
    }
    whole = f'{json.dumps(head)[:-1]}, "traceEvents": [{",".join(texts)}]}}'
    (folder / f"rank{rank}_trace.json").write_text(whole, encoding="utf-8")


def op(ts, name="aten::mm", tid: object = 7, **fields):
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 100, "tid": tid, "ts": ts, "dur": 2}
    return {**event, **fields}


def of_rank(trace, rank, phase="X"):
    return [each for each in trace["traceEvents"] if (each["pid"], each["ph"]) == (rank, phase)]


def names(trace, kind):
    return {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in trace["traceEvents"]
        if each["name"] == kind
    }


def test_ranks_are_named_and_sorted_processes_whose_device_streams_come_first(merged):
    _, trace = merged(SYNTHETIC)

    sorts = [each for each in trace["traceEvents"] if each["name"] == "process_sort_index"]
    assert names(trace, "process_name") == {(n, 0): f"rank {n}" for n in range(4)}
    assert [(each["pid"], each["args"]["sort_index"]) for each in sorts] == [
        (rank, rank) for rank in range(4)
    ]
    threads = names(trace, "thread_name")
    order = {
        (each["pid"], each["tid"]): each["args"]["sort_index"]
        for each in trace["traceEvents"]
        if each["name"] == "thread_sort_index"
    }
    first = sorted((key for key in threads if key[0] == 2), key=order.__getitem__)
    assert [threads[key] for key in first[:3]] == [f"GPU 2, stream {n}" for n in (7, 20, 31)]
    assert len({tid for _, tid in threads}) == len(threads)  # none is shared by two ranks


def test_every_event_stays_with_all_that_it_says_and_flows_join_no_two_ranks(merged):
    _, trace = merged(SYNTHETIC)

    for rank in range(4):
        content = gzip.decompress((SYNTHETIC / f"rank{rank}_trace.json.gz").read_bytes())
        own = [each for each in json.loads(content)["traceEvents"] if each["ph"] != "M"]
        copied = [each for each in trace["traceEvents"] if each["pid"] == rank]
        copied = [each for each in copied if each["ph"] != "M"]
        changed = {"pid", "tid", "ts", "id"}
        assert [{k: v for k, v in each.items() if k not in changed} for each in copied] == [
            {k: v for k, v in each.items() if k not in changed} for each in own
        ]
    ranks_of = defaultdict(set)
    for each in trace["traceEvents"]:
        if each["ph"] in {"s", "f"}:
            ranks_of[each["id"]].add(each["pid"])
    assert {len(ranks) for ranks in ranks_of.values()} == {1}


def test_clocks_that_differ_are_brought_together_and_the_rest_is_said(merged, tmp_path):
    folder = tmp_path / "apart"
    shutil.copytree(SYNTHETIC, folder)
    late = json.loads(gzip.decompress((folder / "rank3_trace.json.gz").read_bytes()))
    late["baseTimeNanoseconds"] += 250_000_000
    (folder / "rank3_trace.json.gz").write_bytes(gzip.compress(json.dumps(late).encode()))

    out, trace = merged(folder)

    ends = [
        median(each["ts"] + each["dur"] for each in of_rank(trace, rank) if "nccl" in each["name"])
        for rank in range(4)
    ]
    assert max(ends) - min(ends) < 100  # microseconds; they were 250,000 apart
    assert "clocks are aligned on 90 matched collectives, whose ends still differ by" in out
    assert trace["otherData"]["clocks"] in out


def test_clocks_that_nothing_aligns_stay_as_recorded_and_that_is_said(merged):
    out, trace = merged(GLOO)

    assert "clocks are as recorded, not aligned: collectives on the host" in out
    assert trace["otherData"]["clocks"].startswith("clocks are as recorded, not aligned")


def test_times_count_exactly_from_the_first_event_of_all(merged, tmp_path):
    absolute = json.dumps(op(0)).replace('"ts": 0', '"ts": 1712195495505583.017')
    rank_file(tmp_path, 0, absolute, base_ns=0)
    rank_file(tmp_path, 1, op(5.25), base_ns=1712195495505583000)

    _, trace = merged(tmp_path)

    assert [each["ts"] for each in of_rank(trace, 0)] == [0.017]
    assert [each["ts"] for each in of_rank(trace, 1)] == [5.25]


def test_spans_of_other_profilers_are_written_with_their_streams(merged):
    out, trace = merged(TRACES / "xla" / "jax_cpu_4dev.trace.json.gz")

    assert "all ranks are in one file, so they share its clock" in out
    assert set(names(trace, "process_name").values()) == {f"rank {n}" for n in range(4)}
    assert all(name for name in names(trace, "thread_name").values())
    assert min(each["ts"] for each in of_rank(trace, 0)) >= 0


def test_a_trial_is_merged_from_its_stored_traces(cclsearch, traced_store, tmp_path):
    to = tmp_path / "merged.json"
    ended = cclsearch("trace", "merge", "trial:0", "-o", to, "--json", "--store", traced_store())

    facts = json.loads(ended.out)
    assert (facts["rank_count"], facts["left_out"]) == (2, 0)
    assert facts["size_bytes"] == to.stat().st_size
    assert len(json.loads(to.read_bytes())["traceEvents"]) == facts["event_count"]


@pytest.mark.parametrize(
    "event",
    [
        '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":2,"ts":"soon","dur":1}',
        '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":2,"ts":1e300,"dur":1}',
        '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":2,"dur":1}',
        '{"ph":"i","name":"mark","pid":1,"tid":2,"ts":[1]}',
    ],
)
def test_an_event_without_a_time_is_left_out_and_counted(merged, tmp_path, event):
    rank_file(tmp_path, 0, op(5))
    rank_file(tmp_path, 1, op(5), event.replace("cpu_op", "other"))

    out, trace = merged(tmp_path)

    assert "caveat: 1 event without a time, or damaged, left out" in out
    assert [each["name"] for each in of_rank(trace, 1)] == ["aten::mm"]


def test_names_cannot_break_the_document_or_the_terminal(merged, tmp_path):
    hostile = 'x\\u001b[31m\\", \\"ts\\": 0}]}</script>'
    named = {"ph": "M", "name": "thread_name", "pid": 100, "tid": 7, "args": {"name": "\x1b[2J"}}
    rank_file(tmp_path, 0, f'{{"ph":"X","cat":"cpu_op","name":"{hostile}","ts":1,"dur":1}}', named)
    rank_file(tmp_path, 1, op(1, tid="][", name="\ud800"), op(2, args={"deep": [[[]]]}))

    out, trace = merged(tmp_path)

    assert "\x1b" not in out
    assert of_rank(trace, 0)[0]["name"] == json.loads(f'"{hostile}"')
    assert "][" in names(trace, "thread_name").values()


def test_a_merged_trace_is_looked_at_and_never_measured(cclsearch, merged, tmp_path):
    merged(GLOO)
    ended = cclsearch("trace", "breakdown", tmp_path / "merged.json.gz", "--no-cache")

    assert ended.code == 2
    assert "is a merged trace of several ranks; read their own traces" in ended.err


def test_no_trace_is_overwritten_and_the_name_says_what_it_is(cclsearch, tmp_path):
    folder = tmp_path / "traces"
    shutil.copytree(GLOO, folder)
    own = folder / "rank0_trace.json.gz"
    before = own.read_bytes()
    for to, words in [
        (own, "is one of the traces to be merged; give another with -o"),
        (tmp_path / "merged.txt", "a Chrome trace is a .json or .json.gz file"),
        (folder, "a Chrome trace is a .json or .json.gz file"),
    ]:
        ended = cclsearch("trace", "merge", folder, "--no-cache", "-o", to, "--force")
        assert (ended.code, words in ended.err) == (2, True)
    assert own.read_bytes() == before

    taken = tmp_path / "taken.json"
    taken.write_text("mine", encoding="utf-8")
    ended = cclsearch("trace", "merge", folder, "--no-cache", "-o", taken)
    assert (ended.code, taken.read_text(encoding="utf-8")) == (2, "mine")
