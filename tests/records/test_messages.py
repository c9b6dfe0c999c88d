"""Workloads whose steps exchange messages."""

import json
from dataclasses import replace

import pytest

from records.codec import from_json, to_json
from records.errors import StudyError
from records.study import Study
from records.trial import Measured
from records.workload import Message, Workload
from tests.support.records import measured, study

MESSAGES = (
    Message(collective="all_reduce", size_bytes=4096, count=3, dtype="bfloat16", reduce_op="avg"),
    Message(collective="barrier"),
)
MIX = Workload(
    name="mix", phase="communication", global_batch=1, sequence_length=1, messages=MESSAGES
)


def test_a_study_of_messages_reads_back_as_it_was():
    asked = replace(study(), workload=MIX)

    assert from_json(Study, to_json(asked)) == asked


def test_a_step_of_messages_processes_no_tokens():
    assert MIX.tokens_per_step == 0


def test_a_study_from_before_there_were_messages_still_loads():
    document = json.loads(to_json(study()))
    del document["workload"]["messages"]

    assert from_json(Study, json.dumps(document)) == study()


def test_a_measurement_from_before_messages_were_timed_still_loads():
    document = json.loads(to_json(measured()))
    del document["measurement"]["message_times_s"]

    assert from_json(Measured, json.dumps(document)) == measured()


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"messages": ()}, "phase 'communication' needs messages; give a"),
        ({"phase": "training"}, "phase 'training' exchanges no messages of its own; leave"),
        ({"phase": "inference", "output_length": 4}, "phase 'inference' exchanges no messages"),
    ],
)
def test_messages_belong_to_communication_and_to_nothing_else(changed, complaint):
    with pytest.raises(StudyError, match=complaint):
        replace(MIX, **changed)
