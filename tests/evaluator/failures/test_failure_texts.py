import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.failures.logs import RULES, meaning, read_log
from records.trial import FailureKind

TEXTS = tomllib.loads(Path(__file__).with_name("failure_texts.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("said", TEXTS["memory"], ids=lambda said: said["text"][:60])
def test_memory_that_ran_out_is_known_by_its_text_and_how_much_was_asked_for(said):
    found = read_log(said["text"])

    assert found.kind is FailureKind.OUT_OF_MEMORY
    asked = f", {said['asked']} asked for" if "asked" in said else ""
    assert found.why == f"{said['why']}{asked}"


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, x) for kind, texts in TEXTS["others"].items() for x in texts]
)
def test_a_message_from_the_world_outside_has_its_kind(kind, text):
    assert read_log(text).kind == kind


@pytest.mark.parametrize("text", TEXTS["harmless"])
def test_a_line_of_a_job_that_runs_tells_of_no_failure(text):
    assert read_log(text) is None


@pytest.mark.parametrize(
    "text", ["Resource temporarily unavailable", "RuntimeError: can't start new thread"]
)
def test_a_thread_that_cannot_start_lacks_memory_only_under_a_limit_on_it(text):
    assert meaning(text, memory_limited=True).kind is FailureKind.OUT_OF_MEMORY
    assert meaning(text).kind is FailureKind.INFRASTRUCTURE


@given(text=st.sampled_from(RULES).flatmap(lambda rule: st.from_regex(rule.pattern)))
def test_no_text_that_a_rule_matches_is_passed_over(text):
    assert meaning(text) is not None
