"""CCL-Bench cards and tuning files are read as they are published, and never written."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from evaluator.launchers.interleaved import device_slots
from evaluator.objective import scoring
from evaluator.recipes.catalog import recipe_of
from policies.contract import decide, seed_policy
from policies.space import Space
from records.errors import StudyError
from records.study import Dimension, Environment, Link, Objective, Study
from records.trial import Config
from records.workload import Workload
from search.study.card_reader import (
    DATA,
    HARDWARE,
    MAX_FILE_BYTES,
    MAX_NODES,
    MODEL,
    PLAN,
    Card,
    Given,
)
from search.study.cards import card_study
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study

CARDS = Path(__file__).parents[2] / "data" / "cards"
TRAINING, INFERENCE, TUNING = (
    CARDS / f"{name}.yaml" for name in ("training", "inference", "tuning")
)
BASE = builtin_study(
    Environment(name="m", device="cpu", accelerator="here", world_size=4, ranks_per_node=4)
)
ORDER = "scale_out,scale_up"
GIVEN = Given(bandwidths=ORDER)


@pytest.fixture
def changed(tmp_path):
    """Give a copy of a card with the value at a dotted path replaced, or left out for `...`."""

    def write(source, path, value):
        document = yaml.safe_load(source.read_text())
        *where, last = path.split(".")
        table = document
        for key in where:
            table = table.setdefault(key, {})
        if value is ...:
            del table[last]
        else:
            table[last] = value
        return written(tmp_path, yaml.safe_dump(document))

    return write


def written(folder, text, name="card.yaml"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(card, tuning=None, order=ORDER):
    with pytest.raises(StudyError) as refused:
        card_study(card, tuning, Given(bandwidths=order), BASE)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(f"{tuning or card}: ")
    assert len(message) < 600
    return message


# What a card gives.


def test_a_card_that_follows_the_template_gives_workload_and_environment():
    study = card_study(TRAINING, None, GIVEN, BASE)
    assert study.name == "training"
    assert study.workload == Workload(
        name="Example decoder, trained on two nodes of four accelerators e",
        family="example-decoder",
        phase="training",
        precision="bf16",
        global_batch=32,
        sequence_length=1024,
        layer_count=32,
        hidden_size=4096,
        head_count=32,
        kv_head_count=8,
        ffn_size=14336,
        vocab_size=128256,
        parameter_count=8030261248,
        expert_count=8,
        experts_per_token=2,
        shared_expert_count=1,
        expert_ffn_size=2048,
        dense_layer_count=1,
        seed=BASE.workload.seed,
    )
    assert study.environment == Environment(
        name="two-nodes",
        device="cuda",
        accelerator="example_gpu_40gb",
        world_size=8,
        ranks_per_node=4,
        memory_bytes=40 * 10**9,
        scale_up=Link(bandwidth_bytes_per_s=300e9),
        scale_out=Link(bandwidth_bytes_per_s=25e9),
    )


def test_everything_that_a_card_does_not_say_stays_as_it_was():
    study = card_study(TRAINING, None, GIVEN, BASE)
    assert study.space == BASE.space
    assert study.objective == BASE.objective
    assert study.budget == BASE.budget


def test_a_card_as_it_is_often_published_gives_what_it_has():
    study = card_study(INFERENCE, None, Given(), BASE)
    workload, environment = study.workload, study.environment
    assert (workload.sequence_length, workload.output_length) == (1024, 128)
    assert workload.name == "A long description of a served model, which goes on for more"
    assert (workload.phase, workload.precision) == ("inference", "fp32")
    assert (workload.layer_count, workload.head_count, workload.kv_head_count) == (27, 16, None)
    assert (workload.parameter_count, workload.expert_count) == (16_000_000_000, None)
    assert (environment.world_size, environment.ranks_per_node) == (4, 4)
    assert (environment.scale_up, environment.scale_out) == (None, None)
    assert environment.memory_bytes is None


def test_model_sizes_in_their_own_block_come_first(changed):
    card = changed(TRAINING, "workload.model.num_layers", 99)
    assert card_study(card, None, GIVEN, BASE).workload.layer_count == 32


@pytest.mark.parametrize(
    "family", ["deepseek-v2-lite", "DeepSeek_V2_Lite", "deepseek-ai/DeepSeek-V2-Lite"]
)
def test_a_known_model_gives_the_sizes_that_a_card_leaves_out(changed, family):
    card = changed(INFERENCE, "workload.model.model_family", family)
    workload = card_study(card, None, Given(), BASE).workload
    assert (workload.model, workload.family) == ("deepseek-v2-lite", family)
    assert (workload.layer_count, workload.hidden_size, workload.kv_head_count) == (27, 2048, 16)
    assert (workload.expert_count, workload.experts_per_token) == (64, 6)
    assert workload.parameter_count == 16_000_000_000


def test_a_card_for_processors_runs_on_processors(changed):
    card = changed(TRAINING, "workload.hardware.xpu_spec.type", "CPU")
    assert card_study(card, None, GIVEN, BASE).environment.device == "cpu"


# Bandwidths, whose order differs between tools.


@pytest.mark.parametrize(
    ("order", "scale_out", "scale_up"),
    [
        ("scale_out,scale_up", 25e9, 300e9),
        ("scale_up,scale_out", 300e9, 25e9),
        ("scale_up, scale_out", 300e9, 25e9),
    ],
)
def test_listed_bandwidths_are_what_the_user_says_in_bytes_per_second(order, scale_out, scale_up):
    environment = card_study(TRAINING, None, Given(bandwidths=order), BASE).environment
    assert environment.scale_out.bandwidth_bytes_per_s == scale_out
    assert environment.scale_up.bandwidth_bytes_per_s == scale_up


@pytest.mark.parametrize("listed", [[200, 2400], [2400, 200]])
def test_of_two_bandwidths_the_faster_is_inside_a_node_and_that_is_said(changed, listed):
    card = changed(TRAINING, "workload.hardware.network_topo.bandwidth_gbps", listed)
    study = card_study(card, None, Given(), BASE)
    assert study.environment.scale_up.bandwidth_bytes_per_s == 300e9
    assert study.environment.scale_out.bandwidth_bytes_per_s == 25e9
    assert [each for each in study.inferences if "--card-bandwidths" in each]


def test_bandwidths_that_are_named_are_no_inference_unless_they_look_exchanged():
    named = card_study(TRAINING, None, GIVEN, BASE)
    exchanged = card_study(TRAINING, None, Given(bandwidths="scale_up,scale_out"), BASE)
    assert "Gbit/s" not in " ".join(named.inferences)
    assert "200 Gbit/s inside a node, slower than the 2400 between nodes" in " ".join(
        exchanged.inferences
    )


@pytest.mark.parametrize("order", ["", "scale_up", "up,out", "scale_up,scale_up", ",", "a,b,c"])
def test_an_order_that_names_no_bandwidths_is_refused(order):
    with pytest.raises(StudyError, match="write scale_out,scale_up or"):
        card_study(TRAINING, None, Given(bandwidths=order), BASE)


@pytest.mark.parametrize("listed", [[200], [200, 2400, 1], [200, "N/A", 2400]])
def test_a_list_that_is_not_two_bandwidths_cannot_be_named(changed, listed):
    card = changed(TRAINING, "workload.hardware.network_topo.bandwidth_gbps", listed)
    assert "--card-bandwidths" in refusal(card)


@pytest.mark.parametrize(
    ("total", "per_node", "link"), [(4, 4, "scale_up"), (2, 8, "scale_up"), (4, 1, "scale_out")]
)
@pytest.mark.parametrize("listed", [[600], ["N/A", 600], [600, "TBD"]])
def test_one_bandwidth_is_that_of_the_only_link_there_is(changed, listed, total, per_node, link):
    card = changed(TRAINING, "workload.hardware.network_topo.bandwidth_gbps", listed)
    card = changed(card, "workload.hardware.xpu_spec.total_count", total)
    card = changed(card, "workload.hardware.xpu_spec.count_per_node", per_node)
    study = card_study(card, None, Given(), BASE)
    links = {"scale_up": study.environment.scale_up, "scale_out": study.environment.scale_out}
    assert links.pop(link) == Link(bandwidth_bytes_per_s=75e9)
    assert [*links.values()] == [None]
    assert "600 Gbit/s" in " ".join(study.inferences)


@pytest.mark.parametrize("listed", [[600], ["N/A", 600], [1, 2, 3]])
def test_one_bandwidth_of_several_nodes_is_asked_for(changed, listed):
    card = changed(TRAINING, "workload.hardware.network_topo.bandwidth_gbps", listed)
    assert "scale_up_bandwidth_gbps" in refusal(card, order=None)


def test_the_bandwidth_that_is_given_is_used_when_the_other_is_not(changed):
    card = changed(TRAINING, "workload.hardware.network_topo.bandwidth_gbps", ["N/A", 2400])
    environment = card_study(card, None, GIVEN, BASE).environment
    assert environment.scale_out is None
    assert environment.scale_up.bandwidth_bytes_per_s == 300e9


@pytest.mark.parametrize("listed", [None, [], ["N/A", "TBD"], "N/A", ["", ""], 0])
def test_a_card_without_bandwidths_needs_no_order(changed, listed):
    card = changed(TRAINING, "workload.hardware.network_topo.bandwidth_gbps", listed)
    environment = card_study(card, None, Given(), BASE).environment
    assert (environment.scale_up, environment.scale_out) == (None, None)


def test_named_bandwidths_need_no_order(changed):
    card = changed(TRAINING, "workload.hardware.network_topo.scale_up_bandwidth_gbps", 3600)
    environment = card_study(card, None, Given(), BASE).environment
    assert environment.scale_up.bandwidth_bytes_per_s == 450e9
    assert environment.scale_out is None


@pytest.mark.parametrize("number", [0, -5, float("inf"), float("nan"), True, 10**400])
def test_a_bandwidth_that_cannot_be_is_no_bandwidth(changed, number):
    card = changed(TRAINING, "workload.hardware.network_topo.bandwidth_gbps", [number, 2400])
    assert card_study(card, None, GIVEN, BASE).environment.scale_out is None


# What a card must give.


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("workload.data.batch_size", "--batch-size N, or as global_batch under [workload]"),
        ("workload.data.seq_len", "sequence_length under [workload] of a study file"),
        ("workload.hardware.xpu_spec.total_count", "--gpus N"),
    ],
)
@pytest.mark.parametrize("value", [..., None, "N/A", "TBD", ""])
def test_what_a_study_needs_is_asked_for_by_its_path(changed, path, value, advice):
    message = refusal(changed(TRAINING, path, value))
    assert f"{path} is missing; give it" in message
    assert advice in message


@pytest.mark.parametrize("value", [0, -4, 4.5, "4", True, {"a": 4}, float("nan")])
def test_a_count_is_a_positive_whole_number(changed, value):
    card = changed(TRAINING, "workload.data.batch_size", value)
    message = refusal(card)
    assert f"workload.data.batch_size is {value!r}, not a positive whole number" in message


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("workload.model.phase", "tuning", "phase is 'tuning', not training, inference or serving"),
        ("workload.hardware.xpu_spec.type", "abacus", "type is 'abacus', not GPU, TPU or CPU"),
        ("workload", "a text", "workload.data.batch_size is missing"),
        ("workload.data", [1], "workload.data.batch_size is missing"),
        ("workload.model", "llama", "this is no workload card"),
        ("workload.data.batch_size", [], "choose one with --batch-size N"),
        ("workload.data.batch_size", [1, 0], "choose one with --batch-size N"),
        ("workload.data.batch_size", [2, 2], "choose one with --batch-size N"),
        ("workload.data.batch_size", [*range(1, 18)], "choose one with --batch-size N"),
    ],
)
def test_other_fields_are_refused_with_their_place(changed, path, value, sentence):
    assert sentence in refusal(changed(TRAINING, path, value))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "not a card: expected named fields, got None"),
        ("- a\n- b\n", "not a card: expected named fields, got ['a', 'b']"),
        ("just words", "not a card: expected named fields, got 'just words'"),
        ("[" * 5000, "not YAML: "),
        ("{a: 1", "not YAML: "),
        ("a: 1\n\tb: 2", "not YAML: line 2: "),
        ("a:\n\tb: 2", "line 2: found character '\\t' that cannot start any token; indent with"),
        ("a: 1\nb: c: d\n", "line 2: mapping values are not allowed here; a value that holds ': '"),
        ("a: http://x/ // TODO: y", "must be quoted, as in \"a: 'http://x/ // TODO: y'\""),
        ("a: 1\n---\nb: 2\n", "not YAML: "),
        ("a: \0", "not YAML: "),
        (b"\xff\xfe\xfa", "cannot be read: "),
        ("when: 2024-02-30", "not YAML: "),
        ("a: !!bool maybe", "not YAML: "),
        ("a: !!timestamp maybe", "not YAML: "),
        ("a: !!int maybe", "not YAML: "),
        ("a: " + "9" * 5000, "not YAML: "),
        ("? [a]\n: 1", "not YAML: "),
        ("a: !!python/object/apply:os.system ['true']", "not YAML: "),
        ("a: !!python/tuple [1]", "not YAML: "),
        ("a: !!python/name:os.system", "not YAML: "),
        ("a: !mine 1", "not YAML: "),
        (
            "a: &a [*a]\n",
            "not YAML: nested over 64 deep, or an alias (*name) stands for something that holds it",
        ),
        ("a: *a\n", "not YAML: line 1: found undefined alias"),
        ("[" * 100 + "]" * 100, "not YAML: nested over 64 deep"),
        ("config_space: []", "a tuning file states no workload; give it with --tuning"),
    ],
)
def test_a_file_that_is_no_card_is_refused_on_one_line(tmp_path, text, sentence):
    assert sentence in refusal(written(tmp_path, text))


def test_an_alias_stands_for_what_it_names(tmp_path):
    text = TRAINING.read_text() + "runs:\n- config: &shared {tp: 4}\n- config: *shared\n"
    path = written(tmp_path, text)
    assert [run["config"] for run in Card(path).items("runs")] == [{"tp": 4}, {"tp": 4}]
    assert card_study(path, None, GIVEN, BASE).workload == replace(
        card_study(TRAINING, None, GIVEN, BASE).workload
    )


@pytest.mark.parametrize("element", ["[{}]", "{{<<: [{}]}}"])
def test_a_small_file_cannot_stand_for_a_large_one(tmp_path, element):
    lines = ["l0: &l0 {k: v}"]
    lines += [f"l{n}: &l{n} " + element.format(",".join([f"*l{n - 1}"] * 9)) for n in range(1, 12)]
    bomb = written(tmp_path, "\n".join([*lines, "description: *l11"]))
    assert f"over {MAX_NODES} values once its aliases" in refusal(bomb)


def test_a_file_of_many_small_values_is_not_read_to_its_end(tmp_path):
    assert f"over {MAX_NODES} values" in refusal(written(tmp_path, "a: [" + "1," * MAX_NODES))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "card.yaml")
    assert "not a regular file" in refusal(tmp_path / "card.yaml")


def test_a_huge_file_is_not_read(tmp_path):
    huge = written(tmp_path, "#" * (MAX_FILE_BYTES + 1))
    assert f"more than {MAX_FILE_BYTES >> 20} MiB" in refusal(huge)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert "cannot be read: " in refusal(tmp_path / "none.yaml")
    assert "cannot be read: " in refusal(tmp_path)


# What a card implies, which is said.


def implied(card, given=GIVEN):
    study = card_study(card, None, given, BASE)
    return study, " | ".join(study.inferences)


def test_a_card_that_states_everything_implies_nothing():
    assert card_study(TRAINING, None, GIVEN, BASE).inferences == ()


def test_the_hidden_size_of_an_unknown_model_is_that_of_its_heads(changed):
    card = changed(TRAINING, "workload.model.model_arch.hidden_size", ...)
    card = changed(card, "workload.model.model_arch.head_dim", 96)
    study, said = implied(card)
    assert study.workload.hidden_size == 32 * 96
    assert "hidden size 3072 = 32 heads x 96" in said


def test_the_sizes_of_a_known_model_are_its_own_and_not_those_of_its_heads(changed):
    card = changed(INFERENCE, "workload.model.model_family", "qwen-3-4b")
    card = changed(card, "workload.model.num_layers", 36)
    card = changed(card, "workload.model.num_heads", 32)
    card = changed(card, "workload.model.head_dim", 128)
    study, said = implied(card)
    sizes = study.workload
    assert (sizes.hidden_size, sizes.head_size, sizes.ffn_size) == (2560, 128, 9728)
    assert "hidden size 2560" in said
    assert "x 128" not in said


@pytest.mark.parametrize(
    ("family", "url", "description", "model"),
    [
        ("llama", "https://huggingface.co/meta-llama/Llama-3.1-8B", "", "llama-3.1-8b"),
        ("mixtral", "mistralai/Mixtral-8x7B-v0.1/tree/main", "", "mixtral-8x7b"),
        ("deepseek_v2", "deepseek-ai/DeepSeek-V2-Lite/tree/main", "", "deepseek-v2-lite"),
        ("deepseek_v3_16b", "deepseek-ai/deepseek-moe-16b-base", "", "deepseek-v3-16b"),
        ("qwen3", "", "Online serving of Qwen3-30B-A3B on 4 accelerators.", "qwen3-30b-a3b"),
        ("qwen3", "", "Qwen3-30B-A3B against Qwen3-8B", None),
        ("qwen-32b", "", "", None),
    ],
)
def test_a_model_is_known_by_what_names_it_most_exactly(changed, family, url, description, model):
    card = changed(INFERENCE, "workload.model.model_family", family)
    card = changed(card, "hf_url", url)
    card = changed(card, "description", description)
    study, said = implied(card)
    assert study.workload.model == model
    assert (f"model {model}, as" in said) is (model is not None)


def test_where_a_card_and_its_model_differ_the_card_counts_and_that_is_said(changed):
    card = changed(TRAINING, "workload.model.model_family", "llama-3.1-8b")
    card = changed(card, "workload.model.model_arch.num_layers", 28)
    card = changed(card, "workload.model.model_arch.num_params_embedding", 204800000)
    study, said = implied(card)
    assert study.workload.layer_count == 28
    assert "layer count 28 as the card states it, where llama-3.1-8b has 32" in said
    assert "num_params_embedding 204800000 is neither vocabulary" in said
    assert "expert count 8 as the card states it, where llama-3.1-8b has 0" in said


def test_a_dense_model_that_a_card_calls_a_mixture_is_said(changed):
    card = changed(INFERENCE, "workload.model.model_family", "qwen3-32b")
    said = implied(changed(card, "workload.model.moe", True))[1]
    assert "no experts of qwen3-32b, where the card says moe: true" in said


def test_a_head_size_of_latent_attention_is_left_out(changed):
    card = changed(TRAINING, "workload.model.model_family", "deepseek-v3")
    card = changed(card, "workload.model.model_arch", {"num_heads": 128, "head_dim": 128})
    study, said = implied(card)
    assert (study.workload.hidden_size, study.workload.head_size) == (7168, None)
    assert "head_dim 128 is left out" in said


def test_nanochat_s_sizes_follow_from_its_heads_and_embedding(changed):
    card = changed(TRAINING, "workload.model.model_family", "nanochat")
    sizes = {"num_layers": 20, "num_heads": 10, "head_dim": 128, "num_params_embedding": 41943040}
    card = changed(card, "workload.model.model_arch", sizes)
    work = implied(card)[0].workload
    assert (work.hidden_size, work.kv_head_count) == (1280, 10)
    assert (work.ffn_size, work.vocab_size) == (5120, 32768)


def test_lengths_follow_from_the_data_set_s_name(changed):
    data = {"batch_size": 8, "seq_len": 1152, "dataset": "random_1024_input_128_output"}
    study, said = implied(changed(INFERENCE, "workload.data", data))
    assert (study.workload.sequence_length, study.workload.output_length) == (1024, 128)
    assert "answers of 128 tokens, as dataset" in said


@pytest.mark.parametrize(
    ("data", "lengths", "sentence"),
    [
        ({"input_len": 100, "seq_len": 120}, (100, 20), "20 tokens = seq_len 120 - input_len 100"),
        ({"seq_len": 120}, (120, None), "prompts of 120 tokens, as the card states no input_len"),
        ({"seq_len": 9, "max_tokens": 5}, (9, 5), "max_tokens, the longest answer"),
        (
            {"input_len": 8, "output_len": 2, "seq_len": 5},
            (8, 2),
            "as input_len says; seq_len is 5",
        ),
        ({"max-model-len": 64}, (64, None), "64 is max-model-len"),
    ],
)
def test_lengths_follow_from_what_a_card_has(changed, data, lengths, sentence):
    study, said = implied(changed(INFERENCE, "workload.data", {"batch_size": 8, **data}))
    assert (study.workload.sequence_length, study.workload.output_length) == lengths
    assert sentence in said


def test_what_a_server_takes_at_most_is_the_batch_of_a_card_without_one(changed):
    data = {"max-num-seqs": 16, "max-model-len": 4096}
    study, said = implied(changed(INFERENCE, "workload.data", data))
    assert study.workload.global_batch == 16
    assert "batch size 16 is max-num-seqs" in said


def test_a_batch_for_each_replica_is_counted_for_all_of_the_plan(changed):
    card = changed(TRAINING, "workload.data.batch_size_scope", "per_gpu")
    plan = {"dp_replicate": 2, "dp_shard": 4, "tp": 2}
    card = changed(card, "Model-executor.model_plan_parallelization", plan)
    study, said = implied(card)
    assert study.workload.global_batch == 32 * 8
    assert "global batch 256 = 32 ('per_gpu') x 8" in said


def test_serving_is_inference_with_arrivals(changed):
    card = changed(INFERENCE, "workload.model.phase", "serving")
    study, said = implied(card)
    assert (study.workload.phase, study.workload.requests_per_s) == ("inference", None)
    assert "arrive over time, at a rate that the card does not state" in said
    study, said = implied(changed(card, "workload.data.request_rate", 8))
    assert study.workload.requests_per_s == 8


def test_the_built_in_recipe_does_not_pretend_to_serve(changed):
    card = changed(INFERENCE, "workload.model.model_family", "debug")
    study, _ = implied(changed(card, "workload.data.request_rate", 8))
    with pytest.raises(StudyError, match="requests_per_s is 8: the builtin recipe answers"):
        completed(study)


def test_memory_follows_from_the_accelerator_s_name(changed):
    card = changed(TRAINING, "workload.hardware.xpu_spec.memory_gb", ...)
    card = changed(card, "workload.hardware.xpu_spec.model", "nvidia_a100_40gb")
    study, said = implied(card)
    assert study.environment.memory_bytes == 40 * 10**9
    assert "40 GB of memory, as the name 'nvidia_a100_40gb' says" in said


def test_a_plan_for_more_accelerators_than_there_are_is_said(changed):
    card = changed(TRAINING, "Model-executor.model_plan_parallelization", {"tp": 4, "pp": 4})
    assert "8 accelerators, where the card's own plan takes 16" in implied(card)[1]


def test_what_a_card_states_twice_is_said(changed, tmp_path):
    card = changed(TRAINING, "workload.model.num_layers", 99)
    card = changed(card, "workload.hardware.xpu_spec.num_nodes", 3)
    said = implied(card)[1]
    assert "workload.model.model_arch.num_layers 32 counts, where the card also states" in said
    assert "8 accelerators, 4 on each node, where num_nodes is 3" in said
    text = TRAINING.read_text().replace(
        "    batch_size: 32", "    batch_size: 8\n    batch_size: 32"
    )
    study, said = implied(written(tmp_path, text, "twice.yaml"))
    assert study.workload.global_batch == 32
    assert re.search(r"line \d+ states 'batch_size' again, and the last one counts", said)


def test_nodes_tell_how_many_accelerators_each_has(changed):
    card = changed(TRAINING, "workload.hardware.xpu_spec.count_per_node", ...)
    study, said = implied(changed(card, "workload.hardware.xpu_spec.num_nodes", 2))
    assert study.environment.ranks_per_node == 4
    assert "4 accelerators on each node, as the card states 2 nodes" in said


def test_lengths_that_differ_from_the_data_set_s_name_are_said(changed):
    data = {"batch_size": 8, "input_len": 4096, "dataset": "random_1024_input_128_output"}
    study, said = implied(changed(INFERENCE, "workload.data", data))
    assert (study.workload.sequence_length, study.workload.output_length) == (4096, 128)
    assert "prompts of 4096 tokens as the card states them; dataset is random_1024" in said


FIELDS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
PATHS = [
    *(f"{place}.{key}" for place in (MODEL, f"{MODEL}.model_arch") for key in ("num_layers",)),
    *(f"{MODEL}.{key}" for key in ("phase", "moe", "model_family", "model_arch", "precision")),
    *(f"{DATA}.{key}" for key in ("batch_size", "seq_len", "input_len", "dataset", "request_rate")),
    *(f"{HARDWARE}.xpu_spec.{key}" for key in ("total_count", "type", "model", "memory_gb")),
    *(f"{HARDWARE}.network_topo.{key}" for key in ("bandwidth_gbps", "topology")),
    *("hf_url", "description", "workload", HARDWARE, PLAN, f"{PLAN}.tp"),
]


@given(source=st.sampled_from([TRAINING, INFERENCE]), path=st.sampled_from(PATHS), value=FIELDS)
def test_a_card_with_anything_in_it_is_read_or_refused_in_a_line(
    source, path, value, tmp_path_factory
):
    document = yaml.safe_load(source.read_text())
    *where, last = path.split(".")
    table = document
    for key in where:
        table = table.setdefault(key, {})
    table[last] = value
    card = tmp_path_factory.mktemp("any") / "card.yaml"
    card.write_text(json.dumps(document), encoding="utf-8")
    try:
        study = card_study(card, None, Given(), BASE)
    except StudyError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 600
    else:
        assert all("\n" not in sentence for sentence in study.inferences)


# What options and the study file say instead of a card.


def test_batch_and_accelerators_may_come_from_options(changed):
    card = changed(changed(TRAINING, "workload.data.batch_size", ...), "workload.hardware", ...)
    study, said = implied(card, Given(batch_size=48, accelerator_count=8))
    assert study.workload.global_batch == 48
    assert (study.environment.world_size, study.environment.device) == (8, "cuda")
    assert "one node of 8, as the card states no count_per_node" in said


def test_a_card_without_hardware_is_for_this_machine(changed):
    study, said = implied(changed(TRAINING, "workload.hardware", ...))
    assert study.environment == BASE.environment
    assert "4 ranks on here, as the card names no hardware" in said


def test_what_is_asked_for_comes_before_the_card_and_that_is_said():
    study, said = implied(TRAINING, Given(batch_size=64, accelerator_count=4, bandwidths=ORDER))
    assert (study.workload.global_batch, study.environment.world_size) == (64, 4)
    assert "batch_size 64 as given, where the card states 32" in said
    assert "total_count 4 as given, where the card states 8" in said


def test_several_batch_sizes_are_contexts_of_the_study(changed):
    card = changed(TRAINING, "workload.data.batch_size", [8, 16, 32])
    study, said = implied(card)
    assert study.workload.global_batch == 8
    assert [(each.name, each.workload.global_batch) for each in study.contexts] == [
        ("batch-16", 16),
        ("batch-32", 32),
    ]
    assert "batch_size lists 3 sizes" in said
    one, _ = implied(card, Given(batch_size=16))
    assert (one.workload.global_batch, one.contexts) == (16, ())


# TPUs.


@pytest.fixture
def tpu_card(changed):
    card = changed(TRAINING, "workload.hardware.xpu_spec.type", "TPU")
    return changed(card, "workload.hardware.xpu_spec.model", "tpu_v6e")


def test_a_tpu_card_is_read_and_refused_only_by_recipes_that_cannot_run_there(tpu_card):
    study = card_study(tpu_card, None, GIVEN, BASE)
    assert (study.environment.device, study.environment.accelerator) == ("tpu", "tpu_v6e")
    with pytest.raises(StudyError, match="device 'tpu': ranks of cclsearch run on GPUs and CPUs"):
        completed(study)


def test_a_script_may_run_on_tpus(tpu_card, tmp_path):
    script = written(tmp_path, "true", "run.sh")
    study = completed(card_study(tpu_card, TUNING, GIVEN, BASE, script))
    recipe = recipe_of(study)
    recipe.check(study)
    config = space_of(study).feasible[0]
    assert recipe.job(study, config).maps_freely
    assert recipe.estimate(study, config)


def test_trials_on_tpus_cannot_be_placed_beside_each_other(tpu_card):
    study = card_study(tpu_card, None, GIVEN, BASE)
    with pytest.raises(StudyError, match="on TPUs trials run one by one"):
        device_slots(replace(study, parallel=2), None)


# Tuning files.


def tuned(folder, text):
    return card_study(TRAINING, written(folder, text, "tuning.yaml"), GIVEN, BASE)


def test_a_tuning_file_gives_knobs_choices_and_objective():
    study = card_study(TRAINING, TUNING, GIVEN, BASE)
    assert study.space.dimensions == (
        Dimension(name="tp", choices=(1, 2, 4), description="tensor-parallel ranks"),
        Dimension(name="dp_replicate", choices=(1, 2, 4, 8), description="data-parallel ranks"),
        Dimension(name="pp", choices=(1, 2), description="pipeline stages"),
        Dimension(name="micro_batch", choices=(1, 2)),
        Dimension(name="activation_checkpointing", choices=("full", "none")),
    )
    assert study.space.constraints == BASE.space.constraints
    assert study.objective == Objective(expression="step_time", direction="minimize")


def test_a_tuned_study_can_be_searched():
    study = completed(card_study(TRAINING, TUNING, GIVEN, BASE))
    space = space_of(study)
    assert len(space.feasible) >= 10
    assert scoring(study.objective).lower_is_better


def test_a_tuned_study_starts_from_a_seed_that_sets_only_its_knobs():
    study = completed(card_study(TRAINING, TUNING, GIVEN, BASE))
    seed = seed_policy(study.seed_policy, space_of(study))
    assert isinstance(
        decide(seed, study.workload, study.usable_environment, space_of(study)), Config
    )


@pytest.mark.parametrize(
    ("goal", "expression", "direction"),
    [
        ("{direction: maximize, metrics: [{name: tokens_per_s}]}", "tokens_per_s", "maximize"),
        ("{direction: minimize, metrics: [{name: step_time, weight: 1}]}", "step_time", "minimize"),
        (
            "{direction: minimize, metrics: [{name: avg_step_time, weight: 2}]}",
            "2 * step_time",
            "minimize",
        ),
        (
            "{direction: minimize, metrics: [{name: avg_step_time, weight: 0.5},"
            " {name: peak_memory, weight: -1}]}",
            "0.5 * step_time + -1 * peak_memory",
            "minimize",
        ),
    ],
)
def test_a_goal_is_one_metric_or_a_weighted_sum(tmp_path, goal, expression, direction):
    study = tuned(tmp_path, f"config_space: []\noptimization_goal: {goal}\n")
    assert study.objective == Objective(expression=expression, direction=direction)
    assert scoring(study.objective).lower_is_better is (direction == "minimize")


def test_without_a_goal_the_objective_stays(tmp_path):
    assert tuned(tmp_path, "config_space: []\n").objective == BASE.objective


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "config_space must be a list of tables"),
        ("config_space: {key: tp}", "config_space must be a list of tables"),
        ("config_space: [tp]", "config_space must be a list of tables"),
        ("config_space: [{key: tp}]", "each entry needs a key and choices: {'key': 'tp'}"),
        ("config_space: [{choices: [1]}]", "each entry needs a key and choices"),
        ("config_space: [{key: tp, choices: []}]", "each entry needs a key and choices"),
        ("config_space: [{key: tp, choices: 4}]", "each entry needs a key and choices"),
        ("config_space: [{key: 4, choices: [4]}]", "each entry needs a key and choices"),
        ("config_space: [{key: tp, choises: [4]}]", "'choises'; did you mean 'choices'?"),
        ("config_space: [{1: 2}]", "unknown key 1; known are key, type, description, choices"),
        ("config_space: [{key: tp, choices: [[1]]}]", "choice [1] of tp is not a plain value"),
        ("config_space: [{key: tp, choices: [null]}]", "choice None of tp is not a plain value"),
        ("config_space: [{key: tp, choices: [.nan]}]", "choice nan of tp is not a plain value"),
        ("config_space: [{key: tp, choices: [.inf]}]", "choice inf of tp is not a plain value"),
        ("config_spaces: []", "unknown key 'config_spaces'; did you mean 'config_space'?"),
        (
            "config_space: []\noptimization_gaol: {}",
            "unknown key 'optimization_gaol'; did you mean 'optimization_goal'?",
        ),
        ("config_space: []\noptimization_goal: fast", "optimization_goal"),
        ("config_space: []\noptimization_goal: {}", "metrics must be a list of tables"),
        (
            "config_space: []\noptimization_goal: {direction: down, metrics: [{name: step_time}]}",
            "needs a direction, minimize or maximize",
        ),
        (
            "config_space: []\noptimization_goal: {direction: minimize, metrics: []}",
            "needs a direction, minimize or maximize, and metrics",
        ),
        (
            "config_space: []\noptimization_goal: {direcion: minimize, metrics: []}",
            "optimization_goal: unknown key 'direcion'; did you mean 'direction'?",
        ),
        (
            "config_space: []\n"
            "optimization_goal: {direction: minimize, metrics: [{name: step_time, wieght: 2}]}",
            "optimization_goal.metrics: unknown key 'wieght'; did you mean 'weight'?",
        ),
        (
            "config_space: []\noptimization_goal: {direction: minimize, metrics: [{weight: 2}]}",
            "each entry needs a name",
        ),
        (
            "config_space: []\n"
            "optimization_goal: {direction: minimize, metrics: [{name: a, weight: heavy}]}",
            "a weight that is a number",
        ),
        (
            "config_space: []\n"
            "optimization_goal: {direction: minimize, metrics: [{name: a, weight: .nan}]}",
            "a weight that is a number",
        ),
    ],
)
def test_a_malformed_tuning_file_is_refused_with_its_place(tmp_path, text, sentence):
    message = refusal(TRAINING, written(tmp_path, text, "tuning.yaml"))
    assert sentence in message


def test_knobs_of_one_meaning_cannot_both_be_given(tmp_path):
    study = tuned(
        tmp_path,
        "config_space: [{key: dp, choices: [1]}, {key: dp_replicate, choices: [1]}]",
    )
    with pytest.raises(StudyError, match=re.escape("knob 'dp_replicate' is defined twice")):
        Space(study.space, study.workload, study.environment)


def test_true_and_false_stay_what_they_are_for_other_knobs(tmp_path):
    study = tuned(tmp_path, "config_space: [{key: overlap, choices: [true, false]}]")
    assert study.space.dimensions[0].choices == (True, False)


# Inputs are read-only.


def test_cards_and_tuning_files_are_never_written(tmp_path):
    paths = [tmp_path / "card.yaml", tmp_path / "tuning.yaml"]
    for path, source in zip(paths, (TRAINING, TUNING), strict=True):
        path.write_bytes(source.read_bytes())
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    study = card_study(*paths, GIVEN, BASE)
    assert isinstance(study, Study)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before
    assert sorted(tmp_path.iterdir()) == paths
