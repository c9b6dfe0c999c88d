"""Well-known models are found by name, in any usual spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import StudyError
from records.workload import (
    LATENT_ATTENTION,
    MODELS,
    known_model,
    known_name,
    model_named,
    names_within,
)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("LLAMA_3.1_8B", "llama-3.1-8b"),
        ("Meta Llama 3.1 8B Instruct", "llama-3.1-8b"),
        ("https://huggingface.co/meta-llama/Llama-3.1-8B/", "llama-3.1-8b"),
        ("mistralai/Mixtral-8x7B-v0.1/tree/main", "mixtral-8x7b"),
        ("mistral_7b_instruct_v0.2", "mistral-7b"),
        ("Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("qwen-3-4b", "qwen3-4b"),
        ("Qwen3-4B-Instruct-2507", "qwen3-4b"),
        ("deepseek_v3_16b", "deepseek-v3-16b"),
        ("DeepSeek-V3-Base", "deepseek-v3"),
    ],
)
def test_a_model_is_found_in_any_usual_spelling(spelling, name):
    assert known_name(spelling) == name
    assert known_model(spelling) == MODELS[name]


@pytest.mark.parametrize(
    "name",
    ["llama", "llama-8b", "llama-3.1", "qwen-34b", "qwen3", "qwen-32b", "mistral-7b-v0.4", ""],
)
def test_a_family_or_another_size_is_no_model(name):
    assert known_name(name) is None


@given(st.text())
def test_any_text_names_a_model_or_none(text):
    assert known_name(text) in {*MODELS, None}
    assert {*names_within(text)} <= {*MODELS}


def test_models_are_found_within_a_text():
    text = "Serving Qwen3-30B-A3B (not Llama-3.1-8B), twice Qwen3-30B-A3B."
    assert names_within(text) == ["qwen3-30b-a3b", "llama-3.1-8b"]


def test_a_name_that_is_none_is_answered_with_the_nearest():
    assert model_named("llama-9-1b") is None
    with pytest.raises(StudyError, match=r"'llama-3.1-8' is unknown; did you mean 'llama-3.1-8b'"):
        known_model("llama-3.1-8")
    with pytest.raises(StudyError, match=r"'x' is unknown; known are debug, debug-moe, llama-2-7b"):
        known_model("x")


def test_every_known_model_is_sound():
    for name, model in MODELS.items():
        assert (model.head_size or model.hidden_size / model.head_count) % 2 == 0, name
        assert model.head_count % model.kv_head_count == 0, name
        if model.expert_count:
            assert 1 <= model.experts_per_token <= model.expert_count, name
            assert 0 <= model.dense_layer_count < model.layer_count, name
            assert model.expert_ffn_size, name


# What the published checkpoints hold beside matrices of these sizes, from their configurations:
# the head is the embedding again, queries, keys and values have biases, queries and keys are
# normalized, and there are four norms in a layer instead of two.
TIED = ("llama-3.2", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "gemma", "qwen3-0.6b")
TIED += ("qwen3-1.7b", "qwen3-4b")
BIASED = ("qwen2.5", "deepseek-r1-distill-qwen")
NORMALIZED = ("qwen3",)
FOUR_NORMS = ("gemma",)
PUBLISHED = {name: model.parameter_count for name, model in MODELS.items()}


def parameters(name):
    """Parameters of the checkpoint, from the sizes; those of attention apart for latent ones."""
    model = MODELS[name]
    hidden, heads = model.hidden_size, model.head_count
    size = model.head_size or hidden // heads
    kv_size = model.kv_head_count * size
    attention = 2 * hidden * heads * size + 2 * hidden * kv_size
    attention += name.startswith(BIASED) * (heads * size + 2 * kv_size)
    attention += name.startswith(NORMALIZED) * 2 * size
    if name in LATENT_ATTENTION:
        attention = latent_attention(name, model)
    norms = (4 if name.startswith(FOUR_NORMS) else 2) * hidden
    mixed = model.layer_count - model.dense_layer_count if model.expert_count else 0
    dense = model.layer_count - mixed
    experts = 0
    if mixed:
        copies = model.expert_count + model.shared_expert_count
        experts = 3 * hidden * model.expert_ffn_size * copies + hidden * model.expert_count
        experts += model.expert_count if name == "deepseek-v3" else 0  # biases that balance them
    tables = model.vocab_size * hidden * (1 if name.startswith(TIED) else 2)
    layers = model.layer_count * (attention + norms)
    return tables + layers + dense * 3 * hidden * model.ffn_size + mixed * experts + hidden


def latent_attention(name, model):
    """Compressed keys, values and, in the large ones, queries: 512, 64 rotated, 1536."""
    hidden, heads = model.hidden_size, model.head_count
    key_values = hidden * (512 + 64) + 512 + 512 * heads * (128 + 128)
    queries = hidden * heads * (128 + 64)
    if name in {"deepseek-v2", "deepseek-v3"}:
        queries = hidden * 1536 + 1536 + 1536 * heads * (128 + 64)
    return queries + key_values + heads * 128 * hidden


def test_the_sizes_of_a_model_add_up_to_its_published_parameters():
    known = {name: count for name, count in PUBLISHED.items() if count}

    assert {name: parameters(name) for name in known} == known
