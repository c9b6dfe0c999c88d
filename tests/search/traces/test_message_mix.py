"""The mix of a recorded job: what its steps communicate, as a study file that exchanges it."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from evaluator.metrics.base import Evidence
from evaluator.traces.model import Activity, CollectiveKind, RankGroup, TraceSet
from evaluator.traces.testing import Span, rank_trace
from records.errors import StudyError
from records.study import Environment
from records.workload import Message
from search.cli.bench import mix
from search.study.spaces import completed
from search.study.study_file import builtin_study, read_study_file
from search.traces.message_mix import mix_of
from search.traces.open import OpenTraces, open_traces

TRACES = Path(__file__).parents[2] / "data" / "traces"
MACHINE = Environment(name="m", device="cpu", accelerator="here", world_size=2, ranks_per_node=2)
WORLD = RankGroup("world", (0, 1, 2, 3), 4)
PAIR = RankGroup("pair", (0, 1), 2)
ONE_STEP = ((0, 0, 1000),)


def call(kind, start_ns, payload_bytes=64, group=WORLD):
    return Span(
        Activity.COMMUNICATION,
        start_ns,
        start_ns + 1,
        collective=kind,
        group=group,
        payload_bytes=payload_bytes,
    )


def recorded(*spans, steps=ONE_STEP, ranks=4):
    traces = TraceSet(
        ranks=tuple(
            rank_trace(spans, steps=steps, rank=rank, world_size=4) for rank in range(ranks)
        )
    )
    return OpenTraces(name="job", evidence=Evidence(traces=traces), traces=traces)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (CollectiveKind.ALL_REDUCE, Message(collective="all_reduce", size_bytes=64)),
        (CollectiveKind.BROADCAST, Message(collective="broadcast", size_bytes=64)),
        (CollectiveKind.REDUCE, Message(collective="reduce", size_bytes=64)),
        (CollectiveKind.ALL_GATHER, Message(collective="all_gather_single", size_bytes=16)),
        (CollectiveKind.REDUCE_SCATTER, Message(collective="reduce_scatter_single", size_bytes=16)),
        (CollectiveKind.ALL_TO_ALL, Message(collective="all_to_all_single", size_bytes=16)),
        (CollectiveKind.GATHER, Message(collective="gather", size_bytes=16)),
        (CollectiveKind.SCATTER, Message(collective="scatter", size_bytes=16)),
        (CollectiveKind.BARRIER, Message(collective="barrier")),
    ],
)
def test_a_size_is_what_a_rank_passes_to_the_call(kind, message):
    payload_bytes = 0 if kind is CollectiveKind.BARRIER else 64

    assert mix_of(recorded(call(kind, 1, payload_bytes))).messages == (message,)


def test_alike_calls_are_counted_per_step_in_the_order_in_which_they_begin():
    small, large = (CollectiveKind.ALL_REDUCE, 8), (CollectiveKind.ALL_REDUCE, 4096)
    order = (large, small, large, large, small, large)
    spans = [call(kind, 10 * i + 1, size) for i, (kind, size) in enumerate(order)]

    found = mix_of(recorded(*spans, steps=((7, 0, 30), (8, 30, 1000))))

    assert [(m.size_bytes, m.count) for m in found.messages] == [(4096, 2), (8, 1)]
    assert found.step_count == 2


def test_what_cannot_be_exchanged_is_left_out_and_said():
    found = mix_of(
        recorded(
            call(CollectiveKind.ALL_REDUCE, 1),
            call(CollectiveKind.ALL_GATHER, 2, 2048, PAIR),
            call(CollectiveKind.ALL_GATHER, 3, 2048, PAIR),
            call(CollectiveKind.ALL_REDUCE, 4, 0),
            call(CollectiveKind.SEND, 5, 64, PAIR),
            call(CollectiveKind.OTHER, 6),
        )
    )

    assert found.messages == (Message(collective="all_reduce", size_bytes=64),)
    assert found.left_out == (
        "2 all_gather of 2.048 kB of 2 of 4 ranks",
        "1 all_reduce of unknown size",
        "1 send between two ranks",
        "1 other of an unknown kind",
    )
    assert "# Left out of each step: 1 send between two ranks." in found.toml()


def test_what_is_rarer_than_every_other_step_is_left_out():
    steps = tuple((number, 100 * number, 100 * number + 100) for number in range(4))
    often = [call(CollectiveKind.ALL_REDUCE, 100 * number + 1) for number in range(4)]

    found = mix_of(recorded(*often, call(CollectiveKind.BROADCAST, 350), steps=steps))

    assert [message.collective for message in found.messages] == ["all_reduce"]
    assert found.left_out == ("0.25 broadcast of 64 B rarer than every other step",)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (recorded(call(CollectiveKind.ALL_REDUCE, 1), steps=()), "no step is marked in all traces"),
        (recorded(), "in each step there are none at all"),
        (
            recorded(call(CollectiveKind.ALL_REDUCE, 1, 64, PAIR)),
            "in each step there are 1 all_reduce of 64 B of 2 of 4 ranks",
        ),
    ],
)
def test_a_job_without_a_mix_says_why(found, sentence):
    with pytest.raises(StudyError, match=sentence):
        mix_of(found)


def test_a_recorded_job_becomes_a_study_that_exchanges_the_same(tmp_path):
    app, path = typer.Typer(), tmp_path / "mix.toml"
    app.command()(mix)
    folder = TRACES / "gloo_ddp_2rank"

    told = CliRunner().invoke(app, [str(folder), "--no-cache", "--out", str(path)])
    study = completed(read_study_file(path, builtin_study(MACHINE)))

    assert told.stdout.splitlines()[-1] == f"next: cclsearch run -c {path}"
    found = mix_of(open_traces(str(folder), use_cache=False))
    assert study.workload.messages == found.messages
    assert [(m.collective, m.size_bytes, m.count) for m in found.messages] == [
        ("all_reduce", 2101248, 3),
        ("all_gather_single", 16384, 1),
        ("reduce_scatter_single", 16384, 1),
        ("all_to_all_single", 16384, 1),
        ("all_reduce", 4194304, 1),
        ("barrier", 0, 1),
    ]


def test_a_file_that_cannot_be_written_is_told(cclsearch):
    folder = TRACES / "gloo_ddp_2rank"

    ended = cclsearch("bench", "mix", folder, "--no-cache", "--out", "nowhere/mix.toml")

    assert (ended.code, ended.out) == (4, "")
    assert "cannot write nowhere/mix.toml: No such file or directory" in ended.err
