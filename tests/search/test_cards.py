"""CCL-Bench cards and tuning files are read as they are published, and never written."""

import re
from pathlib import Path

import pytest
import yaml

from evaluator.objective import scoring
from policies.catalog import seed_policy
from policies.contract import decide
from policies.space import Space
from records.errors import StudyError
from records.study import Dimension, Environment, Link, Objective, Study
from records.trial import Config
from records.workload import Workload
from search.builtin import builtin_study
from search.card_file import MAX_FILE_BYTES
from search.cards import card_study
from search.spaces import completed, space_of

CARDS = Path(__file__).parents[1] / "data" / "cards"
TRAINING, INFERENCE, TUNING = (
    CARDS / f"{name}.yaml" for name in ("training", "inference", "tuning")
)
BASE = builtin_study(
    Environment(name="m", device="cpu", accelerator="here", world_size=4, ranks_per_node=4)
)
ORDER = "scale_out,scale_up"


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
        card_study(card, tuning, order, BASE)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(f"{tuning or card}: ")
    assert len(message) < 600
    return message


# What a card gives.


def test_a_card_that_follows_the_template_gives_workload_and_environment():
    study = card_study(TRAINING, None, ORDER, BASE)
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
    study = card_study(TRAINING, None, ORDER, BASE)
    assert study.space == BASE.space
    assert study.objective == BASE.objective
    assert study.budget == BASE.budget


def test_a_card_as_it_is_often_published_gives_what_it_has():
    study = card_study(INFERENCE, None, None, BASE)
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
    assert card_study(card, None, ORDER, BASE).workload.layer_count == 32


@pytest.mark.parametrize(
    "family", ["deepseek-v2-lite", "DeepSeek_V2_Lite", "deepseek-ai/DeepSeek-V2-Lite"]
)
def test_a_known_model_gives_the_sizes_that_a_card_leaves_out(changed, family):
    card = changed(INFERENCE, "workload.model.model_family", family)
    workload = card_study(card, None, None, BASE).workload
    assert (workload.model, workload.family) == (family, family)
    assert (workload.layer_count, workload.hidden_size, workload.kv_head_count) == (27, 2048, 16)
    assert (workload.expert_count, workload.experts_per_token) == (64, 6)
    assert workload.parameter_count == 16_000_000_000


def test_a_card_for_processors_runs_on_processors(changed):
    card = changed(TRAINING, "workload.hardware.xpu_spec.type", "CPU")
    assert card_study(card, None, ORDER, BASE).environment.device == "cpu"


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
    environment = card_study(TRAINING, None, order, BASE).environment
    assert environment.scale_out.bandwidth_bytes_per_s == scale_out
    assert environment.scale_up.bandwidth_bytes_per_s == scale_up


@pytest.mark.parametrize(
    "order", [None, "", "scale_up", "up,out", "scale_up,scale_up", ",", "a,b,c"]
)
def test_listed_bandwidths_are_never_guessed(order):
    message = refusal(TRAINING, order=order)
    assert "workload.hardware.network_topo.bandwidth_gbps is [200, 2400]" in message
    assert "--card-bandwidths scale_out,scale_up or scale_up,scale_out" in message


@pytest.mark.parametrize("listed", [[200], [200, 2400, 1], [200, "N/A", 2400]])
def test_a_list_that_is_not_two_bandwidths_cannot_be_named(changed, listed):
    card = changed(TRAINING, "workload.hardware.network_topo.bandwidth_gbps", listed)
    assert "--card-bandwidths" in refusal(card)


def test_the_bandwidth_that_is_given_is_used_when_the_other_is_not(changed):
    card = changed(TRAINING, "workload.hardware.network_topo.bandwidth_gbps", ["N/A", 2400])
    environment = card_study(card, None, ORDER, BASE).environment
    assert environment.scale_out is None
    assert environment.scale_up.bandwidth_bytes_per_s == 300e9


@pytest.mark.parametrize("listed", [None, [], ["N/A", "TBD"], "N/A", ["", ""], 0])
def test_a_card_without_bandwidths_needs_no_order(changed, listed):
    card = changed(TRAINING, "workload.hardware.network_topo.bandwidth_gbps", listed)
    environment = card_study(card, None, None, BASE).environment
    assert (environment.scale_up, environment.scale_out) == (None, None)


def test_named_bandwidths_need_no_order(changed):
    card = changed(TRAINING, "workload.hardware.network_topo.scale_up_bandwidth_gbps", 3600)
    environment = card_study(card, None, None, BASE).environment
    assert environment.scale_up.bandwidth_bytes_per_s == 450e9
    assert environment.scale_out is None


@pytest.mark.parametrize("number", [0, -5, float("inf"), float("nan"), True, 10**400])
def test_a_bandwidth_that_cannot_be_is_no_bandwidth(changed, number):
    card = changed(TRAINING, "workload.hardware.network_topo.bandwidth_gbps", [number, 2400])
    assert card_study(card, None, ORDER, BASE).environment.scale_out is None


# What a card must give.


@pytest.mark.parametrize(
    "path",
    [
        "workload.data.batch_size",
        "workload.data.seq_len",
        "workload.hardware.xpu_spec.total_count",
    ],
)
@pytest.mark.parametrize("value", [..., None, "N/A", "TBD", ""])
def test_what_a_study_needs_is_asked_for_by_its_path(changed, path, value):
    card = changed(TRAINING, path, value)
    assert refusal(card) == f"{card}: {path} is missing; a card must give it"


@pytest.mark.parametrize("value", [0, -4, 4.5, "4", True, [4], {"a": 4}, float("nan")])
def test_a_count_is_a_positive_whole_number(changed, value):
    card = changed(TRAINING, "workload.data.batch_size", value)
    message = refusal(card)
    assert f"workload.data.batch_size is {value!r}, not a positive whole number" in message


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("workload.model.phase", "Training", "phase is 'Training', not training or inference"),
        ("workload.hardware.xpu_spec.type", "TPU", "'tpu': only GPU or CPU can run"),
        ("workload", "a text", "workload.data.batch_size is missing"),
        ("workload.data", [1], "workload.data.batch_size is missing"),
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
        ("a: 1\n\tb: 2", "not YAML: "),
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
        ("a: &a [1]\nb: *a\n", "not YAML: aliases (*name) are not read; write the value out"),
        ("a: &a [*a]\n", "not YAML: aliases (*name) are not read"),
    ],
)
def test_a_file_that_is_no_card_is_refused_on_one_line(tmp_path, text, sentence):
    assert sentence in refusal(written(tmp_path, text))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("element", ["[{}]", "{{<<: [{}]}}"])
def test_a_small_file_cannot_stand_for_a_large_one(tmp_path, element):
    lines = ["l0: &l0 {k: v}"]
    lines += [f"l{n}: &l{n} " + element.format(",".join([f"*l{n - 1}"] * 9)) for n in range(1, 12)]
    bomb = written(tmp_path, "\n".join([*lines, "description: *l11"]))
    assert "aliases (*name) are not read" in refusal(bomb)


def test_a_huge_file_is_not_read(tmp_path):
    huge = written(tmp_path, "#" * (MAX_FILE_BYTES + 1))
    assert f"over {MAX_FILE_BYTES} bytes" in refusal(huge)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert "cannot be read: " in refusal(tmp_path / "none.yaml")
    assert "cannot be read: " in refusal(tmp_path)


# Tuning files.


def tuned(folder, text):
    return card_study(TRAINING, written(folder, text, "tuning.yaml"), ORDER, BASE)


def test_a_tuning_file_gives_knobs_choices_and_objective():
    study = card_study(TRAINING, TUNING, ORDER, BASE)
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
    study = completed(card_study(TRAINING, TUNING, ORDER, BASE))
    space = space_of(study)
    assert len(space.feasible) >= 10
    assert scoring(study.objective).lower_is_better


def test_a_tuned_study_starts_from_a_seed_that_sets_only_its_knobs():
    study = completed(card_study(TRAINING, TUNING, ORDER, BASE))
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
    study = card_study(*paths, ORDER, BASE)
    assert isinstance(study, Study)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before
    assert sorted(tmp_path.iterdir()) == paths
