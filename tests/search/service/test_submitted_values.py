"""What remote users may choose: values, among what is configured; no command, path or variable."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from policies.contract import seed_names
from records.errors import StudyError
from records.study import Command, Dimension, Launch
from search.compose import STRATEGIES
from search.service.config import Limits, ServiceConfig
from search.service.service import NewStudy, study_of
from search.study.study_file import builtin_study
from tests.support import records as testing

OWN = builtin_study(testing.ENVIRONMENT)
ATTACKS = [
    "/etc/passwd", "../../key", "$(id)", "; rm -rf ~", "`id`", "--store=/tmp", "-c", "{knob:x}",
    "${HOME}", "LD_PRELOAD=x", "__import__('os')", "offline", "sharded", "step_time", "tp", "dp",
    "a\x1b[31m", "\u202e", "\ud800", "",
]  # fmt: skip
TEXTS = st.sampled_from(ATTACKS) | st.text(max_size=30)
NUMBERS = st.integers(-5, 10**10) | st.floats() | st.booleans()
ANYTHING = st.recursive(
    TEXTS | NUMBERS | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
"""Whatever JSON may hold, in any place."""
FIELDS = st.sampled_from([*NewStudy.model_fields])
PLAUSIBLE = st.fixed_dictionaries(
    {},
    optional={
        "name": TEXTS,
        "objectives": st.lists(st.sampled_from(["step_time", "mfu", *ATTACKS]), max_size=3),
        "direction": st.sampled_from(["minimize", "maximize"]),
        "limits": st.lists(st.sampled_from(["peak_memory < 1e9", *ATTACKS]), max_size=2),
        "strategy": st.sampled_from([*STRATEGIES, *ATTACKS]),
        "seed_policy": st.sampled_from([*seed_names(), *ATTACKS]),
        "seed_source": TEXTS,
        "trials": st.integers(1, 300),
        "parallel": st.integers(1, 8),
        "choices": st.dictionaries(st.sampled_from(["tp", "dp", *ATTACKS]), st.lists(TEXTS)),
    },
)


def accepted(document, folder):
    """The study of a document; None where it is refused in our own words."""
    try:
        asked = NewStudy.model_validate(document)
        return study_of(asked, OWN, ServiceConfig(), folder / "policies")
    except (ValueError, StudyError) as error:
        assert str(error)
        return None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PLAUSIBLE | st.dictionaries(FIELDS | TEXTS, ANYTHING, max_size=4))
@example({"seed_policy": "/etc/passwd"})
@example({"seed_source": "import os\nos.system('id')\n", "name": "x"})
@example({"choices": {"tp": ["/etc/passwd"]}})
def test_nothing_that_is_submitted_becomes_a_command_a_path_or_a_variable(tmp_path, document):
    study = accepted(document, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"policies"}
    if study is None:
        return
    assert (study.command, study.launch, study.environment) == (
        OWN.command, OWN.launch, OWN.environment,
    )  # fmt: skip
    assert (study.measure, study.contexts, study.origin) == (OWN.measure, OWN.contexts, None)
    assert (study.llm.base_url, study.replay_of) == (OWN.llm.base_url, None)
    assert study.strategy in STRATEGIES
    assert study.seed_policy in seed_names() or Path(study.seed_policy).parent == (
        tmp_path / "policies"
    )
    assert not re.search("[\x00-\x1f\x7f-\x9f]", study.name)


@pytest.mark.parametrize(
    "field",
    ["command", "launch", "llm", "measure", "contexts", "card", "replay_of", "from", "store",
     "random_seed", "machine", "space", "__class__"],
)  # fmt: skip
def test_a_field_that_is_not_offered_is_refused(shared, field):
    with shared.client("submit") as program:
        answer = program.post("/api/v1/studies", json={field: {"run": ["id"]}})
    assert answer.status_code == 422
    assert field in answer.text


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"environment": "other"}, "is not offered; known are builtin"),
        ({"environment": "../builtin"}, "is not offered"),
        ({"seed_policy": "/etc/passwd"}, "no built-in seed policy"),
        ({"strategy": "replay"}, "is not offered here"),
        ({"trials": 201}, "at most 200 are allowed"),
        ({"choices": {"LD_PRELOAD": ["x"]}}, "no knob 'LD_PRELOAD'"),
        ({"objectives": ["__import__('os')"]}, ""),
        ({"limits": ["step_time < open('/etc/passwd')"]}, ""),
        ({"name": "a\x1b[31m"}, "name"),
        ({"name": "\ud800"}, ""),
        ({"seed_source": "\ud800"}, ""),
    ],
)
def test_what_is_not_configured_is_refused_in_words(shared, document, words):
    before = shared.service.table.under_way()
    with shared.client("submit") as program:
        answer = program.post(
            "/api/v1/studies",
            content=json.dumps(document),
            headers={"content-type": "application/json"},
        )
    assert answer.status_code == 422
    assert words in answer.json()["error"]
    assert shared.service.table.under_way() == before


def test_the_model_costs_no_more_than_the_operator_allows(tmp_path):
    config = ServiceConfig(limits=Limits(cost_usd=2))
    asked, policies = NewStudy(strategy="offline"), tmp_path
    assert study_of(asked, OWN, config, policies).budget.max_cost_usd == 2
    less = asked.model_copy(update={"max_cost_usd": 0.5})
    assert study_of(less, OWN, config, policies).budget.max_cost_usd == 0.5
    with pytest.raises(StudyError, match="at most 2 is allowed"):
        study_of(asked.model_copy(update={"max_cost_usd": 3.0}), OWN, config, policies)


def test_a_configured_command_stays_as_the_operator_wrote_it(tmp_path):
    knobs = (Dimension(name="lr", choices=("1", "2")),)
    base = replace(
        testing.study(*knobs),
        command=Command(run=("true",), rank_count="world_size", export={"lr": "LR"}),
        launch=Launch(recipe="command"),
    )
    asked = {"name": "$(id)", "choices": {"lr": ["2"]}, "strategy": "offline"}
    study = study_of(NewStudy.model_validate(asked), base, ServiceConfig(), tmp_path)
    assert study.command == base.command
    assert study.space.dimensions[0].choices == ("2",)
    with pytest.raises(StudyError, match="is none of 'lr'"):
        study_of(NewStudy(choices={"lr": ["2; id"]}), base, ServiceConfig(), tmp_path)
