"""Kineto traces of every era, maker and layout are read, and layouts of one trace read alike."""

import gzip
import json

import numpy as np
import pytest

from evaluator.traces.model import Activity
from evaluator.traces.readers.kineto.reader import read_rank
from tests.support.kineto import write
from tests.support.traces import GLOO, SYNTHETIC

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
    kernels = trace.spans.doing(Activity.COMPUTE, Activity.COMMUNICATION).sum()
    communicating = trace.spans.doing(Activity.COMMUNICATION).sum()
    assert (kernels, communicating, trace.steps.count) == RECORDED[name]
    assert trace.collectives.count == communicating
    assert trace.spans.names
    assert trace.caveats == ()


def each_event(document, change):
    return document | {"traceEvents": [change(event) for event in document["traceEvents"]]}


def spelled(event):
    return event | {name: str(event[name]) for name in {"ts", "dur", "pid", "tid"} & event.keys()}


OF_2021 = {
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
    "cpu_op": "Operator",
    "cuda_runtime": "Runtime",
    "python_function": "Python",
}


def of_2021(event):
    return event | {"cat": OF_2021.get(event.get("cat"), event.get("cat", ""))}


LAYOUTS = {
    "with the header last": lambda whole: json.dumps(dict(reversed(whole.items()))),
    "on many lines": lambda whole: json.dumps(whole, indent=2),
    "without spaces": lambda whole: json.dumps(whole, separators=(",", ":")),
    "with a last empty event": lambda whole: json.dumps(
        whole | {"traceEvents": [*whole["traceEvents"], {}]}
    ),
    "with strings for numbers": lambda whole: json.dumps(each_event(whole, spelled)),
    "in reverse": lambda whole: json.dumps(whole | {"traceEvents": whole["traceEvents"][::-1]}),
    "with categories of 2021": lambda whole: json.dumps(each_event(whole, of_2021)),
}


def contents(trace):
    """What a trace says, in an order that does not depend on that of its file."""
    spans, messages = trace.spans, trace.collectives
    columns = (spans.start_ns, spans.end_ns, spans.activity, spans.correlation)
    rows = zip(
        *(column.tolist() for column in columns),
        (spans.names[i] for i in spans.name_id),
        (spans.lanes[i] for i in spans.lane_id),
        strict=True,
    )
    steps = np.stack([trace.steps.number, trace.steps.start_ns, trace.steps.end_ns]).tolist()
    sent = (spans.start_ns[messages.span], messages.kind, messages.bytes)
    return (
        (trace.rank, trace.world_size, trace.device, steps),
        sorted(rows, key=repr),
        sorted(zip(*(column.tolist() for column in sent), strict=True)),
    )


@pytest.mark.parametrize("folder", [SYNTHETIC, GLOO], ids=["nccl", "gloo"])
def test_one_trace_in_any_layout_reads_alike(tmp_path, folder):
    path = folder / "rank0_trace.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    trace = read_rank(path)
    expected = contents(trace)
    for name, layout in LAYOUTS.items():
        assert contents(read_rank(write(tmp_path, layout(document).encode()))) == expected, name
    bare = read_rank(write(tmp_path, json.dumps(document["traceEvents"]).encode()))
    assert bare.spans.activity.tolist() == trace.spans.activity.tolist()
    assert (bare.rank, bare.world_size, bare.backend) == (0, None, None)
