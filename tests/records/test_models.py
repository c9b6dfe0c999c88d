"""Well-known models are found by name, in any usual spelling."""

from dataclasses import fields

import pytest

from records.errors import StudyError
from records.models import MODELS, Model, known_model, model_named
from records.workload import Workload


@pytest.mark.parametrize(
    "spelling", ["llama-3.1-8b", "Llama-3.1-8B", "LLAMA_3.1_8B", "meta-llama/Llama-3.1-8B"]
)
def test_a_model_is_found_in_any_usual_spelling(spelling):
    assert known_model(spelling).hidden_size == 4096


def test_a_name_that_is_none_is_answered_with_the_nearest():
    assert model_named("llama-9-1b") is None
    with pytest.raises(StudyError, match=r"'llama-3.1-8' is unknown; did you mean 'llama-3.1-8b'"):
        known_model("llama-3.1-8")
    with pytest.raises(
        StudyError, match=r"'x' is unknown; known are debug, debug-moe, llama-3.2-1b"
    ):
        known_model("x")


def test_the_sizes_of_a_model_are_fields_of_a_workload():
    assert {f.name for f in fields(Model)} <= {f.name for f in fields(Workload)}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_known_model_is_sound(model):
    assert model.hidden_size % (2 * model.head_count) == 0
    assert model.head_count % model.kv_head_count == 0
    if model.expert_count:
        assert 1 <= model.experts_per_token <= model.expert_count
        assert 0 <= model.dense_layer_count < model.layer_count
        assert model.expert_ffn_size
