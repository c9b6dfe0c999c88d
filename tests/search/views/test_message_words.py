"""Messages and what they took, as people and the model read them."""

from dataclasses import replace

import pytest

from records.store.rows import PendingTrial
from records.store.store import Store
from records.workload import Message, Workload
from search.cli.trial import show
from search.views.format import message_words, work_words
from search.views.trial import trial_row
from tests.support import records as testing

REDUCED = Message(collective="all_reduce", size_bytes=4 << 20, count=12)
MIX = Workload(
    name="mix",
    phase="communication",
    global_batch=1,
    sequence_length=1,
    messages=(REDUCED, Message(collective="barrier")),
)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (REDUCED, "12 × all_reduce sum float32 4 MiB"),
        (Message(collective="barrier"), "1 × barrier"),
        (
            Message(collective="reduce_scatter", size_bytes=40, dtype="int64", reduce_op="max"),
            "1 × reduce_scatter max int64 40 B",
        ),
        (Message(collective="all_gather", size_bytes=2048), "1 × all_gather float32 2 KiB"),
    ],
)
def test_a_message_is_told_with_its_count(message, words):
    assert message_words(message) == words


def test_the_work_of_a_step_is_its_messages_or_its_tokens():
    assert work_words(MIX) == "exchanges 12 × all_reduce sum float32 4 MiB, 1 × barrier"
    assert work_words(testing.WORKLOAD) == "processes 2048 tokens"


def test_a_trial_tells_how_long_one_call_of_each_message_took():
    outcome = testing.measured()
    timed = replace(outcome.measurement, message_times_s=(0.00125, 3e-5))
    trial = testing.trial(0, replace(outcome, measurement=timed), {"in_flight": 1})

    told = trial_row(trial, None, "in_flight=1", metrics=frozenset(), message_chars=100)

    assert told.endswith("; one call of each message takes 0.00125, 3e-05 s")


def test_a_trial_on_record_is_shown_with_its_messages(tmp_path, capsys):
    outcome = testing.measured()
    timed = replace(outcome.measurement, message_times_s=(0.00125, 3e-5))
    trial = testing.trial(0, replace(outcome, measurement=timed), {"in_flight": 1})
    store = Store(tmp_path)
    store.create("20260101-000000-aaaa", replace(testing.study(), workload=MIX), "test")
    intent = PendingTrial(
        ordinal=0, policy=trial.policy, started_at=trial.started_at, exchange=None
    )
    store.begin("20260101-000000-aaaa", intent, None)
    store.finish("20260101-000000-aaaa", trial)
    store.close()

    show(["0"], tmp_path)

    lines = capsys.readouterr().out.splitlines()
    assert "  each step: 12 × all_reduce sum float32 4 MiB: 0.00125 s a call" in lines
    assert "  each step: 1 × barrier: 3e-05 s a call" in lines
