"""Values survive the way through JSON unchanged; what is not a result is refused on the way in."""

import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from records.codec import first_problem, from_document, from_json, to_json
from records.errors import CodecError, StudyError
from records.llm_exchange import LlmExchange, TokenUsage
from records.store.rows import to_outcome
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
    FailureKind,
    Measured,
    Measurement,
    MetricValue,
    Score,
    Serving,
    Stage,
)
from records.workload import Workload
from tests.support.records import failed, measured, study

NUMBER = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=20)
COUNT = st.integers(1, 2**62)
ARTIFACTS = st.lists(st.builds(Artifact, name=TEXT, digest=TEXT, size_bytes=COUNT), max_size=2)
MEASURED = st.builds(
    Measured,
    measurement=st.builds(
        Measurement,
        step_times_s=st.lists(st.lists(NUMBER, max_size=3).map(tuple), max_size=3).map(tuple),
        warmup_times_s=st.lists(st.lists(NUMBER, max_size=3).map(tuple), max_size=3).map(tuple),
        losses=st.lists(NUMBER, max_size=3).map(tuple),
        tokens_per_step=COUNT,
        peak_memory_bytes=st.lists(COUNT, max_size=3).map(tuple),
        wall_s=NUMBER,
        device=TEXT,
        torch_version=TEXT,
        serving=st.none()
        | st.builds(
            Serving,
            first_token_times_s=st.lists(st.lists(NUMBER, max_size=2).map(tuple)).map(tuple),
            next_token_times_s=st.none(),
            output_tokens_per_step=COUNT,
        ),
    ),
    metrics=st.lists(
        st.builds(
            MetricValue,
            name=TEXT,
            value=NUMBER,
            unit=TEXT,
            better=st.sampled_from(["lower", "higher"]),
            version=COUNT,
        ),
        max_size=2,
    ).map(tuple),
    breakdown=st.none()
    | st.builds(
        Breakdown,
        compute_s=NUMBER,
        exposed_communication_s=NUMBER,
        hidden_communication_s=NUMBER,
        other_s=NUMBER,
        idle_s=NUMBER,
    ),
    artifacts=ARTIFACTS.map(tuple),
)
FAILED = st.builds(
    Failed,
    stage=st.sampled_from(Stage),
    kind=st.sampled_from(FailureKind),
    message=TEXT,
    artifacts=ARTIFACTS.map(tuple),
)
LINK = st.none() | st.builds(
    Link,
    bandwidth_bytes_per_s=st.floats(1e-300, 1e300),
    latency_s=st.none() | st.floats(0, 1e300),
)
CHOICE = st.one_of(st.booleans(), st.integers(), NUMBER, TEXT)
STUDY = st.builds(
    Study,
    name=TEXT,
    workload=st.builds(
        Workload,
        name=TEXT,
        global_batch=COUNT,
        sequence_length=COUNT,
        layer_count=st.none() | COUNT,
        phase=st.sampled_from(["training", "inference"]),
    ),
    environment=st.builds(
        Environment,
        name=TEXT,
        device=st.sampled_from(["cpu", "cuda", "tpu"]),
        accelerator=TEXT,
        world_size=st.integers(1, MOST_RANKS),
        ranks_per_node=COUNT,
        scale_up=LINK,
        scale_out=LINK,
        software=st.dictionaries(TEXT, TEXT, max_size=2),
    ),
    space=st.builds(
        SearchSpace,
        dimensions=st.lists(
            st.builds(
                Dimension,
                name=TEXT,
                choices=st.none() | st.lists(CHOICE, max_size=4).map(tuple),
                range=st.none() | st.builds(Range, low=NUMBER, high=st.integers()),
            ),
            max_size=2,
        ).map(tuple),
        constraints=st.lists(st.builds(Constraint, name=TEXT, expression=TEXT), max_size=2).map(
            tuple
        ),
    ),
    objective=st.builds(
        Objective, expression=TEXT, direction=st.sampled_from([None, "minimize", "maximize"])
    ),
    seed_policy=TEXT,
)
EXCHANGE = st.builds(
    LlmExchange,
    model=TEXT,
    request=TEXT,
    reply=TEXT,
    result=TEXT,
    usage=st.builds(TokenUsage, input_tokens=COUNT, output_tokens=COUNT),
    latency_s=NUMBER,
    request_count=COUNT,
)


@given(st.one_of(STUDY, EXCHANGE))
@settings(deadline=None)
def test_a_value_comes_back_as_it_was_with_its_types(value):
    back = from_json(type(value), to_json(value))
    assert back == value
    assert repr(back) == repr(value)


@given(st.one_of(MEASURED, FAILED))
@settings(deadline=None)
def test_an_outcome_comes_back_as_what_it_was(outcome):
    back = to_outcome(to_json(outcome))
    assert type(back) is type(outcome)
    assert repr(back) == repr(outcome)


def test_an_outcome_from_before_anything_was_served_can_be_read():
    document = json.loads(to_json(measured()))
    del document["measurement"]["serving"]

    assert to_outcome(json.dumps(document)) == measured()


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
        ("", "Study: value: "),
        ("{", "Study: value: "),
        ("[]", "Study: value: "),
        ("null", "Study: value: "),
        ("{}", "Study: name: Field required"),
    ],
)
def test_text_that_is_no_study_is_refused_with_the_first_fault(text, sentence):
    with pytest.raises(CodecError, match=re.escape(sentence)) as refused:
        from_json(Study, text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"status": "measured"}', '{"stage": "decide"}'])
def test_text_that_is_no_outcome_is_refused(text):
    with pytest.raises(CodecError):
        to_outcome(text)


def test_a_stored_score_that_is_no_number_is_refused():
    with pytest.raises(CodecError):
        from_json(Score, '{"cost": NaN, "value": 1.0, "unit": "s"}')


@pytest.mark.parametrize(
    "place",
    [
        (),
        ("workload",),
        ("environment",),
        ("environment", "scale_up"),
        ("space",),
        ("space", "dimensions", 0),
        ("space", "dimensions", 0, "range"),
        ("space", "constraints", 0),
        ("objective",),
        ("budget",),
        ("measure",),
        ("launch",),
        ("llm",),
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
        (("random_seed",), "42"),
        (("random_seed",), 42.0),
        (("random_seed",), True),
        (("workload", "global_batch"), "16"),
        (("workload", "global_batch"), 16.0),
        (("workload", "global_batch"), True),
        (("workload", "global_batch"), None),
        (("workload", "phase"), "Training"),
        (("environment", "device"), "abacus"),
        (("measure", "timeout_s"), "60"),
        (("measure", "timeout_s"), True),
        (("measure", "timeout_s"), math.inf),
        (("measure", "timeout_s"), math.nan),
        (("space", "dimensions"), {}),
        (("space", "dimensions", 0, "choices"), "1, 2"),
        (("space", "dimensions", 0, "choices"), [1, None]),
        (("space", "dimensions", 0, "choices"), [1, [2]]),
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


def test_a_whole_number_may_stand_for_seconds():
    document = json.loads(to_json(study()))
    document["measure"]["timeout_s"] = 60
    assert from_document(Study, document).measure.timeout_s == 60.0


@pytest.mark.parametrize("choices", [(True, False), (1, 2), (1.0, 2.0), ("1", "2"), (2**70,)])
def test_choices_keep_their_types_in_a_document(choices):
    document = json.loads(to_json(study(Dimension(name="k", choices=choices))))
    back = from_document(Study, document).space.dimensions[0].choices
    assert repr(back) == repr(choices)


def test_a_bound_that_a_document_breaks_is_a_fault_of_the_study():
    document = json.loads(to_json(study()))
    document["budget"]["trials"] = 0
    with pytest.raises(StudyError, match=re.escape("[budget] trials is 0")):
        from_document(Study, document)


def test_a_value_that_json_does_not_have_is_refused_by_name():
    with pytest.raises(TypeError, match="which no key accepts"):
        from_document(Study, {"name": object()})


def test_a_failure_is_stored_with_its_place_and_cause():
    text = to_json(failed(FailureKind.HANG, Stage.LAUNCH, "rank 1 waits"))
    assert json.loads(text) == {
        "stage": "launch",
        "kind": "hang",
        "message": "rank 1 waits",
        "artifacts": [],
        "contexts": [],
        "launched": None,
        "status": "failed",
    }
