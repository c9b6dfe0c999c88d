"""CCL-Bench cards and tuning files are read as they are published, and never written."""

import json
import os
import re
from dataclasses import replace
from operator import attrgetter
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
from records.study import Dimension, Environment, Link, Objective
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
IMPLIED = yaml.safe_load(Path(__file__).with_name("implied.yaml").read_text(encoding="utf-8"))
BASE = builtin_study(
    Environment(name="m", device="cpu", accelerator="here", world_size=4, ranks_per_node=4)
)
ORDER, EXCHANGED = "scale_out,scale_up", "scale_up,scale_out"
GIVEN = Given(bandwidths=ORDER)
ARCH, SPEC, TOPOLOGY = f"{MODEL}.model_arch", f"{HARDWARE}.xpu_spec", f"{HARDWARE}.network_topo"
FAMILY, BANDWIDTHS = f"{MODEL}.model_family", f"{HARDWARE}.network_topo.bandwidth_gbps"


def edited(source, changes):
    """The fields of a card with the values at dotted paths replaced, or left out for `...`."""
    document = yaml.safe_load(source.read_text())
    for path, value in changes.items():
        *where, last = path.split(".")
        table = document
        for key in where:
            table = table.setdefault(key, {})
        if value is ...:
            del table[last]
        else:
            table[last] = value
    return document


def written(folder, text, name="card.yaml"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.fixture
def changed(tmp_path):
    """Writes a card with changed fields; gives its path."""
    return lambda source, changes: written(tmp_path, yaml.safe_dump(edited(source, changes)))


@pytest.fixture
def read(changed):
    """Reads a card with changed fields; gives the study, and all that is said of it."""

    def run(source, changes, given=GIVEN):
        study = card_study(changed(source, changes), None, given, BASE)
        return study, " | ".join(study.inferences)

    return run


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
    assert (study.name, study.inferences) == ("training", ())
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
    assert (study.space, study.objective, study.budget) == (BASE.space, BASE.objective, BASE.budget)


def test_a_card_as_it_is_often_published_gives_what_it_has():
    study = card_study(INFERENCE, None, Given(), BASE)
    assert study.workload == Workload(
        name="A long description of a served model, which goes on for more",
        family=study.workload.family,
        phase="inference",
        precision="fp32",
        global_batch=study.workload.global_batch,
        sequence_length=1024,
        output_length=128,
        layer_count=27,
        head_count=16,
        parameter_count=16_000_000_000,
        seed=BASE.workload.seed,
    )
    environment = study.environment
    assert (environment.world_size, environment.ranks_per_node) == (4, 4)
    assert (environment.scale_up, environment.scale_out) == (None, None)
    assert environment.memory_bytes is None


@pytest.mark.parametrize(
    "family", ["deepseek-v2-lite", "DeepSeek_V2_Lite", "deepseek-ai/DeepSeek-V2-Lite"]
)
def test_a_known_model_gives_the_sizes_that_a_card_leaves_out(read, family):
    workload = read(INFERENCE, {FAMILY: family}, Given())[0].workload
    assert (workload.model, workload.family) == ("deepseek-v2-lite", family)
    assert (workload.layer_count, workload.hidden_size, workload.kv_head_count) == (27, 2048, 16)
    assert (workload.expert_count, workload.experts_per_token) == (64, 6)
    assert workload.parameter_count == 16_000_000_000


# Bandwidths, whose order differs between tools.


@pytest.mark.parametrize(
    ("listed", "order", "out", "up", "said"),
    [
        ([200, 2400], ORDER, 25, 300, ""),
        ([200, 2400], EXCHANGED, 300, 25, "200 Gbit/s inside a node, slower than the 2400 between"),
        ([200, 2400], "scale_up, scale_out", 300, 25, "--card-bandwidths"),
        ([200, 2400], None, 25, 300, "--card-bandwidths names them otherwise"),
        ([2400, 200], None, 25, 300, "--card-bandwidths names them otherwise"),
        (["N/A", 2400], ORDER, None, 300, ""),
        *((none, None, None, None, "") for none in (None, [], ["N/A", "TBD"], "N/A", ["", ""], 0)),
        *(
            ([number, 2400], ORDER, None, 300, "")
            for number in (0, -5, float("inf"), float("nan"), True, 10**400)
        ),
    ],
)
def test_listed_bandwidths_are_what_the_user_says_or_the_faster_is_inside(
    read, listed, order, out, up, said
):
    study, told = read(TRAINING, {BANDWIDTHS: listed}, Given(bandwidths=order))
    links = study.environment.scale_out, study.environment.scale_up
    assert [link and link.bandwidth_bytes_per_s / 1e9 for link in links] == [out, up]
    assert said in told if said else "Gbit/s" not in told


def test_named_bandwidths_need_no_order(read):
    changes = {f"{TOPOLOGY}.scale_up_bandwidth_gbps": 3600}
    environment = read(TRAINING, changes, Given())[0].environment
    assert environment.scale_up.bandwidth_bytes_per_s == 450e9
    assert environment.scale_out is None


@pytest.mark.parametrize("order", ["", "scale_up", "up,out", "scale_up,scale_up", ",", "a,b,c"])
def test_an_order_that_names_no_bandwidths_is_refused(order):
    with pytest.raises(StudyError, match="write scale_out,scale_up or"):
        card_study(TRAINING, None, Given(bandwidths=order), BASE)


@pytest.mark.parametrize("listed", [[200], [200, 2400, 1], [200, "N/A", 2400]])
def test_a_list_that_is_not_two_bandwidths_cannot_be_named(changed, listed):
    assert "--card-bandwidths" in refusal(changed(TRAINING, {BANDWIDTHS: listed}))


@pytest.mark.parametrize(
    ("total", "per_node", "link"), [(4, 4, "scale_up"), (2, 8, "scale_up"), (4, 1, "scale_out")]
)
@pytest.mark.parametrize("listed", [[600], ["N/A", 600], [600, "TBD"]])
def test_one_bandwidth_is_that_of_the_only_link_there_is(read, listed, total, per_node, link):
    counts = {f"{SPEC}.total_count": total, f"{SPEC}.count_per_node": per_node}
    study, said = read(TRAINING, {BANDWIDTHS: listed, **counts}, Given())
    links = {"scale_up": study.environment.scale_up, "scale_out": study.environment.scale_out}
    assert links.pop(link) == Link(bandwidth_bytes_per_s=75e9)
    assert [*links.values()] == [None]
    assert "600 Gbit/s" in said


@pytest.mark.parametrize("listed", [[600], ["N/A", 600], [1, 2, 3]])
def test_one_bandwidth_of_several_nodes_is_asked_for(changed, listed):
    card = changed(TRAINING, {BANDWIDTHS: listed})
    assert "scale_up_bandwidth_gbps" in refusal(card, order=None)


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
    message = refusal(changed(TRAINING, {path: value}))
    assert f"{path} is missing; give it" in message
    assert advice in message


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        *(
            (f"{DATA}.batch_size", value, f"batch_size is {value!r}, not a positive whole number")
            for value in (0, -4, 4.5, "4", True, {"a": 4}, float("nan"))
        ),
        (f"{MODEL}.phase", "tuning", "phase is 'tuning', not training, inference or serving"),
        (f"{SPEC}.type", "abacus", "type is 'abacus', not GPU, TPU or CPU"),
        ("workload", "a text", "workload.data.batch_size is missing"),
        (DATA, [1], "workload.data.batch_size is missing"),
        (MODEL, "llama", "this is not a workload card"),
        *(
            (f"{DATA}.batch_size", value, "choose one with --batch-size N")
            for value in ([], [1, 0], [2, 2], [*range(1, 18)])
        ),
    ],
)
def test_fields_that_cannot_be_are_refused_with_their_place(changed, path, value, sentence):
    assert sentence in refusal(changed(TRAINING, {path: value}))


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
    workloads = [card_study(card, None, GIVEN, BASE).workload for card in (path, TRAINING)]
    assert workloads[0] == workloads[1]


@pytest.mark.parametrize("element", ["[{}]", "{{<<: [{}]}}"])
def test_a_small_file_cannot_stand_for_a_large_one(tmp_path, element):
    lines = ["l0: &l0 {k: v}"]
    lines += [f"l{n}: &l{n} " + element.format(",".join([f"*l{n - 1}"] * 9)) for n in range(1, 12)]
    bomb = written(tmp_path, "\n".join([*lines, "description: *l11"]))
    assert f"over {MAX_NODES} values once its aliases" in refusal(bomb)


def test_a_file_of_many_small_values_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("search.study.card_reader.MAX_NODES", 1000)
    assert "over 1000 values" in refusal(written(tmp_path, "a: [" + "1," * 10_000))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("none.yaml", "cannot be read: "),
        (".", "cannot be read: "),
        ("pipe.yaml", "not a regular file"),
        ("huge.yaml", f"more than {MAX_FILE_BYTES >> 20} MiB"),
    ],
)
def test_what_is_no_file_of_its_size_is_not_read_or_waited_for(tmp_path, name, sentence):
    os.mkfifo(tmp_path / "pipe.yaml")
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(1 << 40)
    assert sentence in refusal(tmp_path / name)


# What a card implies, which is said.


@pytest.mark.parametrize("case", IMPLIED, ids=lambda case: case["said"][:40])
def test_what_a_card_implies_is_concluded_and_said(read, case):
    source = {"training": TRAINING, "inference": INFERENCE}[case["card"]]
    absent = {path: ... if value == "absent" else value for path, value in case["fields"].items()}
    study, said = read(source, absent)
    facts = case.get("facts", {})
    assert {name: attrgetter(name)(study) for name in facts} == facts
    assert case["said"] in said


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
def test_a_model_is_known_by_what_names_it_most_exactly(read, family, url, description, model):
    study, said = read(INFERENCE, {FAMILY: family, "hf_url": url, "description": description})
    assert study.workload.model == model
    assert (f"model {model}, as" in said) is (model is not None)


def test_a_key_that_a_card_states_twice_is_said(tmp_path):
    twice = "    batch_size: 8\n    batch_size: 32"
    text = TRAINING.read_text().replace("    batch_size: 32", twice)
    study = card_study(written(tmp_path, text), None, GIVEN, BASE)
    assert study.workload.global_batch == 32
    (said,) = study.inferences
    assert re.fullmatch(r"line \d+ states 'batch_size' again, and the last one counts", said)


def test_the_built_in_recipe_does_not_pretend_to_serve(read):
    study, _ = read(INFERENCE, {FAMILY: "debug", f"{DATA}.request_rate": 8})
    with pytest.raises(StudyError, match="requests_per_s is 8: the builtin recipe answers"):
        completed(study)


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
    card = written(tmp_path_factory.mktemp("any"), json.dumps(edited(source, {path: value})))
    try:
        study = card_study(card, None, Given(), BASE)
    except StudyError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 600
    else:
        assert all("\n" not in sentence for sentence in study.inferences)


# What options and the study file say instead of a card.


def test_batch_and_accelerators_may_come_from_options(read):
    given = Given(batch_size=48, accelerator_count=8)
    study, said = read(TRAINING, {f"{DATA}.batch_size": ..., HARDWARE: ...}, given)
    assert study.workload.global_batch == 48
    assert (study.environment.world_size, study.environment.device) == (8, "cuda")
    assert "one node of 8, as the card states no count_per_node" in said


def test_what_is_asked_for_comes_before_the_card_and_that_is_said(read):
    given = Given(batch_size=64, accelerator_count=4, bandwidths=ORDER)
    study, said = read(TRAINING, {}, given)
    assert (study.workload.global_batch, study.environment.world_size) == (64, 4)
    assert "batch_size 64 as given, where the card states 32" in said
    assert "total_count 4 as given, where the card states 8" in said


def test_several_batch_sizes_are_contexts_of_the_study(read):
    changes = {f"{DATA}.batch_size": [8, 16, 32]}
    study, said = read(TRAINING, changes)
    others = [(each.name, each.workload.global_batch) for each in study.contexts]
    assert (study.workload.global_batch, others) == (8, [("batch-16", 16), ("batch-32", 32)])
    assert "batch_size lists 3 sizes" in said
    one, _ = read(TRAINING, changes, Given(batch_size=16))
    assert (one.workload.global_batch, one.contexts) == (16, ())


# TPUs.


@pytest.fixture
def tpu_card(changed):
    return changed(TRAINING, {f"{SPEC}.type": "TPU", f"{SPEC}.model": "tpu_v6e"})


def test_a_tpu_card_is_read_and_refused_only_by_recipes_that_cannot_run_there(tpu_card):
    study = card_study(tpu_card, None, GIVEN, BASE)
    assert (study.environment.device, study.environment.accelerator) == ("tpu", "tpu_v6e")
    with pytest.raises(StudyError, match="device 'tpu': ranks of cclsearch run on GPUs and CPUs"):
        completed(study)
    with pytest.raises(StudyError, match="on TPUs trials run one by one"):
        device_slots(replace(study, parallel=2), None)


def test_a_script_may_run_on_tpus(tpu_card, tmp_path):
    script = written(tmp_path, "true", "run.sh")
    study = completed(card_study(tpu_card, TUNING, GIVEN, BASE, script))
    recipe = recipe_of(study)
    recipe.check(study)
    config = space_of(study).feasible[0]
    assert recipe.job(study, config).maps_freely
    assert recipe.estimate(study, config)


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


def test_a_tuned_study_can_be_searched_from_a_seed_that_sets_only_its_knobs():
    study = completed(card_study(TRAINING, TUNING, GIVEN, BASE))
    space = space_of(study)
    assert len(space.feasible) >= 10
    assert scoring(study.objective).lower_is_better
    seed = seed_policy(study.seed_policy, space)
    assert isinstance(decide(seed, study.workload, study.usable_environment, space), Config)


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


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ("{}", "[config_space] must be written [[config_space]]"),
        ("[tp]", "[config_space.0] must be a table, not 'tp'"),
        ("[{key: tp}]", "[config_space.0] needs choices"),
        ("[{choices: [1]}]", "[config_space.0] needs key"),
        ("[{key: tp, choices: []}]", "[config_space.0] choices: "),
        ("[{key: tp, choices: 4}]", "[config_space.0] choices: "),
        ("[{key: 4, choices: [4]}]", "[config_space.0] key: Input should be a valid string"),
        ("[{key: tp, choises: [4]}]", "unknown key 'choises'; did you mean 'choices'?"),
        ("[{1: 2}]", "unknown key '1'; known are key, choices, type, description"),
        ("[{key: tp, choices: [[1]]}]", "choices] 0: [1] is not a number, a text, true or false"),
        ("[{key: tp, choices: [null]}]", "choices] 0: None is not a number, a text, true or"),
        ("[{key: tp, choices: [.nan]}]", "choices] 0: nan is not a number, a text, true or"),
        ("[{key: tp, choices: [2024-02-03]}]", "2024-02-03 is a date, which no key accepts"),
    ],
)
def test_a_malformed_space_is_refused_with_its_place(tmp_path, space, sentence):
    tuning = written(tmp_path, f"config_space: {space}", "tuning.yaml")
    assert sentence in refusal(TRAINING, tuning)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "needs config_space"),
        ("config_spaces: []", "unknown key 'config_spaces'; did you mean 'config_space'?"),
        ("optimization_goal: fast", "[optimization_goal] must be a table, not 'fast'"),
        ("optimization_goal: {}", "[optimization_goal] needs direction, metrics"),
        ("optimization_goal: {direction: down, metrics: [{name: a}]}", "'minimize' or 'maximize'"),
        ("optimization_goal: {direction: minimize, metrics: []}", "[optimization_goal] metrics: "),
        (
            "optimization_goal: {direcion: minimize, metrics: []}",
            "[optimization_goal] unknown key 'direcion'; did you mean 'direction'?",
        ),
        (
            "optimization_goal: {direction: minimize, metrics: [{name: a, wieght: 2}]}",
            "[optimization_goal.metrics.0] unknown key 'wieght'; did you mean 'weight'?",
        ),
        (
            "optimization_goal: {direction: minimize, metrics: [{weight: 2}]}",
            "[optimization_goal.metrics.0] needs name",
        ),
        (
            "optimization_goal: {direction: minimize, metrics: [{name: a, weight: heavy}]}",
            "[optimization_goal.metrics.0] weight: ",
        ),
        (
            "optimization_goal: {direction: minimize, metrics: [{name: a, weight: .nan}]}",
            "[optimization_goal.metrics.0] weight: ",
        ),
    ],
)
def test_a_malformed_tuning_file_is_refused_with_its_place(tmp_path, text, sentence):
    space = "" if text == "{}" or "config" in text else "config_space: []\n"
    assert sentence in refusal(TRAINING, written(tmp_path, space + text, "tuning.yaml"))


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
    assert study.objective == BASE.objective  # as the file has no goal


# Inputs are read-only.


def test_cards_and_tuning_files_are_never_written(tmp_path):
    paths = [tmp_path / "card.yaml", tmp_path / "tuning.yaml"]
    for path, source in zip(paths, (TRAINING, TUNING), strict=True):
        path.write_bytes(source.read_bytes())
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    card_study(*paths, GIVEN, BASE)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before
    assert sorted(tmp_path.iterdir()) == paths
