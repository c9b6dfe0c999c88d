"""Values survive the way through JSON unchanged; what is not a result is refused on the way in."""

import json
import math
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from records.codec import first_problem, from_document, from_json, to_json
from records.errors import CodecError, StudyError
from records.llm_exchange import LlmExchange, TokenUsage
from records.study import (
    MOST_RANKS,
    Constraint,
    Dimension,
    Environment,
    Link,
    Objective,
    Range,
    SearchSpace,
    Study,
)
from records.trial import (
    Artifact,
    Breakdown,
    Failed,
    Measured,
    Measurement,
    MetricValue,
    Outcome,
    Score,
    Serving,
)
from records.workload import Workload
from tests.support.records import measured, study

NUMBER = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=20)
COUNT = st.integers(1, 2**62)
TIMES = st.lists(st.lists(NUMBER, max_size=3).map(tuple), max_size=3).map(tuple)


def several(strategy):
    return st.lists(strategy, max_size=2).map(tuple)


MEASURED = st.builds(
    Measured,
    measurement=st.builds(
        Measurement,
        step_times_s=TIMES,
        warmup_times_s=TIMES,
        losses=several(NUMBER),
        wall_s=NUMBER,
        serving=st.none()
        | st.builds(Serving, first_token_times_s=TIMES, next_token_times_s=st.none()),
    ),
    metrics=several(st.builds(MetricValue, value=NUMBER)),
    breakdown=st.none()
    | st.builds(Breakdown, **dict.fromkeys((each.name for each in fields(Breakdown)), NUMBER)),
    artifacts=several(st.builds(Artifact)),
)
FAILED = st.builds(Failed, artifacts=several(st.builds(Artifact)))
LINK = st.none() | st.builds(
    Link, bandwidth_bytes_per_s=st.floats(1e-300, 1e300), latency_s=st.none() | st.floats(0, 1e300)
)
DIMENSION = st.builds(
    Dimension,
    choices=st.none() | several(st.one_of(st.booleans(), st.integers(), NUMBER, TEXT)),
    range=st.none() | st.builds(Range, low=NUMBER, high=st.integers()),
)
STUDY = st.builds(
    Study,
    workload=st.builds(
        Workload,
        global_batch=COUNT,
        sequence_length=COUNT,
        layer_count=st.none() | COUNT,
        phase=st.sampled_from(["training", "inference"]),
    ),
    environment=st.builds(
        Environment,
        world_size=st.integers(1, MOST_RANKS),
        ranks_per_node=COUNT,
        scale_up=LINK,
        scale_out=LINK,
        software=st.dictionaries(TEXT, TEXT, max_size=2),
    ),
    space=st.builds(
        SearchSpace,
        dimensions=several(DIMENSION),
        constraints=several(st.builds(Constraint)),
    ),
    objective=st.builds(Objective, direction=st.sampled_from([None, "minimize", "maximize"])),
)
EXCHANGE = st.builds(LlmExchange, usage=st.builds(TokenUsage), latency_s=NUMBER)


@given(st.one_of(STUDY, EXCHANGE))
@settings(deadline=None)
def test_a_value_comes_back_as_it_was_with_its_types(value):
    back = from_json(type(value), to_json(value))
    assert back == value
    assert repr(back) == repr(value)


@given(st.one_of(MEASURED, FAILED))
@settings(deadline=None)
def test_an_outcome_comes_back_as_what_it_was(outcome):
    back = from_json(Outcome, to_json(outcome))  # type: ignore[arg-type]  # a union
    assert type(back) is type(outcome)
    assert repr(back) == repr(outcome)


@given(STUDY)
@settings(deadline=None)
def test_a_study_that_was_stored_reads_as_a_document_too(value):
    assert repr(from_document(Study, json.loads(to_json(value)))) == repr(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "build",
    [
        lambda x: replace(measured(), measurement=replace(measured().measurement, wall_s=x)),
        lambda x: replace(
            measured(), measurement=replace(measured().measurement, step_times_s=((1.0, x),))
        ),
        lambda x: replace(measured(), breakdown=replace(measured().breakdown, idle_s=x)),
        lambda x: replace(measured(), metrics=(replace(measured().metrics[0], value=x),)),
        lambda x: study(Dimension(name="lr", choices=(0.5, x))),
        lambda x: study(Dimension(name="lr", range=Range(low=x, high=1))),
    ],
)
def test_what_is_no_number_is_refused_at_any_depth(number, build):
    value = build(number)
    with pytest.raises(CodecError, match=f"{type(value).__name__} holds a number"):
        to_json(value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *((text, "Study: value: ") for text in ("", "{", "[]", "null")),
        ("{}", "Study: name: Field required"),
    ],
)
def test_text_that_is_no_study_is_refused_with_the_first_fault(text, sentence):
    with pytest.raises(CodecError, match=re.escape(sentence)) as refused:
        from_json(Study, text)
    assert "\n" not in str(refused.value)
    with pytest.raises(CodecError):
        from_json(Outcome, text)  # type: ignore[arg-type]  # a union
    with pytest.raises(CodecError):
        from_json(Score, '{"cost": NaN, "value": 1.0, "unit": "s"}')


@pytest.mark.parametrize(
    "place",
    [
        (),
        *((part,) for part in ("workload", "objective", "budget", "measure", "launch", "llm")),
        ("environment", "scale_up"),
        ("space", "dimensions", 0, "range"),
        ("space", "constraints", 0),
    ],
)
def test_a_field_that_no_study_has_is_refused_wherever_it_is(place):
    document = json.loads(
        to_json(
            replace(
                study(),
                environment=replace(study().environment, scale_up=Link(bandwidth_bytes_per_s=1.0)),
                space=SearchSpace(
                    dimensions=(Dimension(name="tp", range=Range(low=1, high=2)),),
                    constraints=(Constraint(name="c", expression="tp < 3"),),
                ),
            )
        )
    )
    table = document
    for step in place:
        table = table[step]
    table["surprise"] = 1
    with pytest.raises(ValidationError) as refused:
        from_document(Study, document)
    assert first_problem(refused.value).startswith(".".join(map(str, (*place, "surprise"))))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("name",), 4),
        *((("workload", "global_batch"), value) for value in ("16", 16.0, True, None)),
        (("workload", "phase"), "Training"),
        *((("measure", "timeout_s"), value) for value in ("60", True, math.inf, math.nan)),
        (("space", "dimensions"), {}),
        *((("space", "dimensions", 0, "choices"), value) for value in ("1, 2", [1, None], [[2]])),
        (("budget",), None),
    ],
)
def test_nothing_in_a_document_is_turned_into_another_type(path, value):
    document = json.loads(to_json(study()))
    *where, key = path
    table = document
    for step in where:
        table = table[step]
    table[key] = value
    with pytest.raises(ValidationError):
        from_document(Study, document)


def test_a_document_may_hold_whole_seconds_and_nothing_out_of_bounds_or_out_of_json():
    document = json.loads(to_json(study()))
    document["measure"]["timeout_s"] = 60
    assert from_document(Study, document).measure.timeout_s == 60.0
    document["budget"]["trials"] = 0
    with pytest.raises(StudyError, match=re.escape("[budget] trials is 0")):
        from_document(Study, document)
    with pytest.raises(TypeError, match="which no key accepts"):
        from_document(Study, {"name": object()})


@pytest.mark.parametrize("choices", [(True, False), (1, 2), (1.0, 2.0), ("1", "2"), (2**70,)])
def test_choices_keep_their_types_in_a_document(choices):
    document = json.loads(to_json(study(Dimension(name="k", choices=choices))))
    back = from_document(Study, document).space.dimensions[0].choices
    assert repr(back) == repr(choices)
