"""Kineto traces of every era, maker and layout are read, and layouts of one trace read alike."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from evaluator.traces.model import Activity, StepKind
from evaluator.traces.readers.kineto.reader import read_rank
from tests.support.kineto import write

OURS = Path(__file__).parents[3] / "data" / "traces"
ONE_OF_EACH = [
    OURS / "gloo_ddp_2rank" / "rank0_trace.json.gz",
    OURS / "synth_fsdp_4rank_straggler2" / "rank0_trace.json.gz",
]

KERNELS = (Activity.COMPUTE, Activity.COMMUNICATION)

# What a slow reader of each file counts: kernels, those that communicate, steps on the device.
RECORDED = {
    "a100_critical_path_alexnet": (79, 0, 0),
    "a100_ddp_2rank_rank0": (2700, 21, 3),
    "a100_event_sync_multistream": (3, 0, 0),
    "b200_8rank_rank0_eager": (768, 74, 1),
    "dlrm128_2of128/rank0": (1154, 10, 2),
    "dlrm128_2of128/rank1": (1104, 10, 2),
    "h100_bert_small": (60, 0, 1),
    "h100_qwen0.5b": (1465, 0, 1),
    "legacy_resnet50_2021_w4": (8868, 0, 6),
    "mi210_gpu_only": (562, 0, 0),
    "mi250_minitoy": (14, 0, 1),
    "mi300_bert_small": (60, 0, 1),
    "mi300_ddp8_rank0": (2995, 17, 3),
    "mi300_sglang_decode": (555, 0, 1),
    "mi300_sglang_prefilldecode": (527, 0, 1),
    "mi355_vllm_decode_full": (425, 0, 1),
    "triton_example": (1, 0, 1),
    "v100_ns_resolution": (4350, 0, 5),
}


def recorded(folder, name):
    return read_rank(folder / "traces/kineto" / f"{name}.json.gz", only_rank=0)


@pytest.mark.parametrize("name", RECORDED)
def test_every_kernel_and_step_of_every_era_is_found(recorded_data, name):
    trace = recorded(recorded_data, name)
    kernels = trace.spans.doing(*KERNELS).sum()
    communicating = trace.spans.doing(Activity.COMMUNICATION).sum()
    assert (kernels, communicating, trace.steps.count) == RECORDED[name]
    assert trace.collectives.count == communicating
    assert trace.spans.names
    assert trace.caveats == ()


@pytest.mark.parametrize("name", ["no_distributed_info", "rank_missing"])
def test_what_the_host_of_a_device_job_did_is_not_its_work(recorded_data, name):
    trace = recorded(recorded_data, name)

    assert not trace.has_work
    assert trace.steps.count == 0
    assert trace.host_steps.count == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("b200_8rank_rank0_eager", StepKind.PREFILL),
        ("mi300_sglang_prefilldecode", StepKind.PREFILL),
        ("mi300_sglang_decode", StepKind.DECODE),
        ("mi355_vllm_decode_full", StepKind.DECODE),
    ],
)
def test_steps_of_inference_engines_are_found(recorded_data, name, kind):
    assert recorded(recorded_data, name).steps.kind.tolist() == [kind]


def test_a_step_is_as_long_as_the_work_launched_in_it_where_its_ranges_are_too_short(recorded_data):
    """The profiler recorded 0.02 ms for each of these steps: work outside of all inner ranges."""
    steps = recorded(recorded_data, "mi300_ddp8_rank0").steps
    assert (steps.duration_ns // 1_000_000).tolist() == [18, 18, 18]


def test_steps_on_the_device_are_those_that_the_profiler_recorded(recorded_data):
    path = recorded_data / "traces/kineto" / "h100_qwen0.5b.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    (step,) = (
        e for e in events if e.get("cat") == "gpu_user_annotation" and "ProfilerStep" in e["name"]
    )
    (read,) = recorded(recorded_data, "h100_qwen0.5b").steps.duration_ns.tolist()
    assert read == pytest.approx(step["dur"] * 1000, abs=1)


def as_bare_list(document):
    return json.dumps(document["traceEvents"])


def with_the_header_last(document):
    header = {name: value for name, value in document.items() if name != "traceEvents"}
    return json.dumps({"traceEvents": document["traceEvents"], **header})


def on_many_lines(document):
    return json.dumps(document, indent=2)


def without_spaces(document):
    return json.dumps(document, separators=(",", ":"))


def with_a_last_empty_event(document):
    return json.dumps(document | {"traceEvents": [*document["traceEvents"], {}]})


def with_strings_for_numbers(document):
    def spelled(event):
        numbers = {"ts", "dur", "pid", "tid"} & event.keys()
        return event | {name: str(event[name]) for name in numbers}

    return json.dumps(document | {"traceEvents": [spelled(e) for e in document["traceEvents"]]})


def in_reverse(document):
    return json.dumps(document | {"traceEvents": document["traceEvents"][::-1]})


LAYOUTS = [
    with_the_header_last,
    on_many_lines,
    without_spaces,
    with_a_last_empty_event,
    with_strings_for_numbers,
    in_reverse,
]


def told(trace):
    """What a trace says, in an order that does not depend on that of its file."""
    spans, messages = trace.spans, trace.collectives
    rows = zip(
        spans.start_ns.tolist(),
        spans.end_ns.tolist(),
        (spans.names[i] for i in spans.name_id),
        (spans.lanes[i] for i in spans.lane_id),
        spans.activity.tolist(),
        spans.correlation.tolist(),
        strict=True,
    )
    steps = [np.stack([s.number, s.start_ns, s.end_ns]).tolist() for s in (trace.steps,)]
    starts = spans.start_ns[messages.span].tolist()
    sent = zip(starts, messages.kind.tolist(), messages.bytes.tolist(), strict=True)
    return trace.rank, trace.world_size, trace.device, sorted(rows, key=repr), steps, sorted(sent)


@pytest.mark.parametrize("path", ONE_OF_EACH, ids=["gloo", "nccl"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_trace_in_any_layout_reads_alike(tmp_path, path, layout):
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert told(read_rank(write(tmp_path, layout(document).encode()))) == told(read_rank(path))


@pytest.mark.parametrize("path", ONE_OF_EACH, ids=["gloo", "nccl"])
def test_a_bare_list_lacks_only_what_stands_around_it(tmp_path, path):
    document = json.loads(gzip.decompress(path.read_bytes()))
    bare, whole = (
        read_rank(write(tmp_path, as_bare_list(document).encode())),
        read_rank(path),
    )
    assert bare.spans.activity.tolist() == whole.spans.activity.tolist()
    assert bare.spans.duration_ns.tolist() == whole.spans.duration_ns.tolist()
    assert (bare.rank, bare.world_size, bare.backend) == (0, None, None)


def test_categories_of_2021_mean_what_they_mean_today(tmp_path):
    document = json.loads(gzip.decompress(ONE_OF_EACH[1].read_bytes()))
    of_2021 = {
        "kernel": "Kernel",
        "gpu_memcpy": "Memcpy",
        "gpu_memset": "Memset",
        "cpu_op": "Operator",
        "cuda_runtime": "Runtime",
        "python_function": "Python",
    }
    for event in document["traceEvents"]:
        event["cat"] = of_2021.get(event.get("cat"), event.get("cat", ""))
    assert told(read_rank(write(tmp_path, document))) == told(read_rank(ONE_OF_EACH[1]))
