"""A study file is laid over the built-in study; what it cannot mean is refused in its own words."""

import json
import os

import pytest

from records.codec import to_json
from records.errors import StudyError
from records.study import Constraint, Dimension, Environment, Link, Range
from search.study.study_file import builtin_study, read_study_file

BASE = builtin_study(
    Environment(name="m", device="cpu", accelerator="here", world_size=4, ranks_per_node=4)
)


def written(folder, text):
    path = folder / "study.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder, text):
    return read_study_file(written(folder, text), BASE)


def refusal(folder, text):
    path = written(folder, text)
    with pytest.raises(StudyError) as refused:
        read_study_file(path, BASE)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


# What is laid over what.


def test_an_empty_file_changes_nothing(tmp_path):
    assert read(tmp_path, "") == BASE
    assert read(tmp_path, "# only a comment\n[budget]\n[workload]\n") == BASE


def test_a_key_that_is_given_replaces_and_the_others_stay(tmp_path):
    study = read(tmp_path, 'name = "mine"\n[workload]\nglobal_batch = 8\n[budget]\ntrials = 3\n')
    assert study.name == "mine"
    assert study.workload.global_batch == 8
    assert study.workload.layer_count == BASE.workload.layer_count
    assert (study.budget.trials, study.budget.patience) == (3, BASE.budget.patience)
    assert study.space == BASE.space


def test_a_space_replaces_knobs_and_constraints_as_a_whole(tmp_path):
    study = read(
        tmp_path,
        '[space.tp]\nchoices = [1, 2]\n[space.mb]\nwhen = "tp > 1"\n'
        'range = { low = 1, high = 16, scale = "doubling" }\ndescription = "batch"\n',
    )
    assert study.space.dimensions == (
        Dimension(name="tp", choices=(1, 2)),
        Dimension(
            name="mb",
            range=Range(low=1, high=16, scale="doubling"),
            when="tp > 1",
            description="batch",
        ),
    )
    assert study.space.constraints == ()


@pytest.mark.parametrize("knobs", ["", "[space.tp]\nchoices = [1, 2]\n"])
@pytest.mark.parametrize("knobs_first", [True, False])
def test_constraints_replace_constraints_and_keep_knobs(tmp_path, knobs, knobs_first):
    constraint = '[[constraint]]\nname = "c"\nexpression = "tp < 2"\n'
    study = read(tmp_path, knobs + constraint if knobs_first else constraint + knobs)
    assert study.space.constraints == (Constraint(name="c", expression="tp < 2"),)
    assert len(study.space.dimensions) == (1 if knobs else len(BASE.space.dimensions))


def test_numbers_and_words_keep_their_types(tmp_path):
    study = read(
        tmp_path,
        "[space.a]\nchoices = [1, 2]\n[space.b]\nchoices = [1.0, 2.5]\n"
        '[space.c]\nchoices = [true, false]\n[space.d]\nchoices = ["1", "true"]\n',
    )
    choices = [dimension.choices for dimension in study.space.dimensions]
    assert repr(choices) == "[(1, 2), (1.0, 2.5), (True, False), ('1', 'true')]"


def test_links_are_in_bytes_and_seconds(tmp_path):
    study = read(
        tmp_path,
        "[environment]\nscale_up = { bandwidth_bytes_per_s = 450e9, latency_s = 1e-6 }\n"
        "scale_out = { bandwidth_bytes_per_s = 50_000_000_000 }\n",
    )
    assert study.environment.scale_up == Link(bandwidth_bytes_per_s=4.5e11, latency_s=1e-6)
    assert study.environment.scale_out == Link(bandwidth_bytes_per_s=5e10)


def test_a_resolved_study_can_be_given_again_as_a_file(tmp_path):
    document = json.loads(to_json(BASE))
    lines = [f"{key} = {json.dumps(document[key])}" for key in ("name", "seed_policy", "strategy")]
    for section in ("workload", "environment", "objective", "budget", "measure", "launch", "llm"):
        lines.append(f"[{section}]")
        lines += [
            f"{key} = {json.dumps(value)}"
            for key, value in document[section].items()
            if value is not None and not isinstance(value, dict)
        ]
    assert read(tmp_path, "\n".join(lines)) == BASE


def test_a_file_can_be_laid_over_a_file(tmp_path):
    once = read(tmp_path, "[budget]\ntrials = 3\n")
    twice = read_study_file(written(tmp_path, "[budget]\npatience = 2\n"), once)
    assert (twice.budget.trials, twice.budget.patience) == (3, 2)


def test_a_file_says_how_many_trials_are_measured_at_once(tmp_path):
    assert read(tmp_path, "").parallel == 1
    assert read(tmp_path, "parallel = 2\n").parallel == 2
    with pytest.raises(StudyError, match="parallel is 0; it must be at least 1"):
        read(tmp_path, "parallel = 0\n")


# Keys that nothing has.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budgt = 1", "unknown key 'budgt'; did you mean 'budget'?"),
        ("[mesure]\nx = 1", "unknown key 'mesure'; did you mean 'measure'?"),
        ("[constraints]", "unknown key 'constraints'; did you mean 'constraint'?"),
        ("[budget]\ntrial = 1", "[budget] unknown key 'trial'; did you mean 'trials'?"),
        ("[budget]\nint = 1", "[budget] unknown key 'int'; known are trials, launches, patience, "),
        (
            "[workload]\nglobalbatch = 1",
            "[workload] unknown key 'globalbatch'; did you mean 'global_batch'?",
        ),
        ("[measure]\ntimeout = 1", "[measure] unknown key 'timeout'; did you mean 'timeout_s'?"),
        ("[llm]\napi_key = 'x'", "[llm] unknown key 'api_key'; known are model, base_url, "),
        (
            "[environment]\nscale_up = { bandwidth_gbps = 400 }",
            "[environment.scale_up] unknown key 'bandwidth_gbps'; "
            "did you mean 'bandwidth_bytes_per_s'?",
        ),
        (
            "[environment.scale_out]\nlatency = 1",
            "[environment.scale_out] unknown key 'latency'; did you mean 'latency_s'?",
        ),
        (
            "[space.a]\nchoices = [1]\n[space.tp]\nchoises = [1]",
            "[space.tp] unknown key 'choises'; did you mean 'choices'?",
        ),
        (
            "[space.tp]\nrange = { low = 1, hihg = 2 }",
            "[space.tp.range] unknown key 'hihg'; did you mean 'high'?",
        ),
        (
            "[[constraint]]\nname = 'a'\nexpresion = 'b'",
            "[constraint.0] unknown key 'expresion'; did you mean 'expression'?",
        ),
    ],
)
def test_an_unknown_key_is_named_with_its_table_and_the_closest_known_one(tmp_path, text, message):
    assert refusal(tmp_path, text).startswith(message)


# Values that cannot be meant.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 4", "name: Input should be a valid string"),
        ("name = 2026-01-01", "2026-01-01 is a date, which no key accepts; quote it"),
        ("random_seed = 1.0", "random_seed: Input should be a valid integer"),
        ("budget = 3", "[budget] must be a table, not 3"),
        ("objective = 'step_time'", "[objective] must be a table, not 'step_time'"),
        ("[[space]]", "[space] must be a table, not [{}]"),
        ("[space]\ntp = [1, 2]", "[space.tp] must be a table, not [1, 2]"),
        ("[constraint]\nname = 'a'", "constraint: Input should be a valid array"),
        ("[workload]\nglobal_batch = '16'", "[workload] global_batch: Input should be a valid int"),
        ("[workload]\nglobal_batch = 16.0", "[workload] global_batch: Input should be a valid int"),
        ("[workload]\nglobal_batch = true", "[workload] global_batch: Input should be a valid int"),
        ("[workload]\nglobal_batch = 0", "[workload] global_batch is 0; it must be at least 1"),
        (
            "[workload]\nphase = 'train'",
            "[workload] phase: Input should be 'training', 'inference' or",
        ),
        (
            "[environment]\ndevice = 'abacus'",
            "[environment] device: Input should be 'cpu', 'cuda' or 'tpu'",
        ),
        ("[environment]\nscale_up = 400", "[environment] scale_up: "),
        (
            "[environment]\nscale_up = { bandwidth_bytes_per_s = 0 }",
            "[environment] bandwidth_bytes_per_s is 0.0; it must be finite and above 0",
        ),
        ("[environment]\nscale_up = {}", "[environment.scale_up] needs bandwidth_bytes_per_s"),
        ("[environment.software]\ntorch = 2.0", "[environment.software] torch: Input should be a"),
        ("[measure]\ntimeout_s = inf", "[measure] timeout_s: Input should be a finite number"),
        ("[measure]\ntimeout_s = nan", "[measure] timeout_s: Input should be a finite number"),
        ("[measure]\ntimed_steps = 4", "[measure] timed_steps is 4; it must be at least 5"),
        ("[budget]\nmax_wall_s = -1", "[budget] max_wall_s is -1.0; it must be finite and above 0"),
        ("[objective]\ndirection = 'down'", "[objective] direction: Input should be 'minimize' or"),
        ("[space.tp]\nchoices = 4", "[space.tp] choices: Input should be a valid array"),
        ("[space.tp]\nchoices = [1, [2]]", "[space.tp.choices] 1: Input should be"),
        ("[space.tp]\nchoices = [1, nan]", "[space.tp.choices] 1: Input should be"),
        ("[space.tp]\nrange = { low = 1 }", "[space.tp.range] needs high"),
        ("[space.tp]\nrange = { low = 1, high = 'x' }", "[space.tp.range] high: Input should be"),
        ("[space.tp]\nrange = { low = 1, high = inf }", "[space.tp.range] high: Input should be"),
        ("[space.tp]\nrange = [1, 4]", "[space.tp] range: "),
        ("[[constraint]]\nname = 'a'", "[constraint.0] needs expression"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_its_place(tmp_path, text, message):
    assert refusal(tmp_path, text).startswith(message)


def test_a_long_value_of_the_wrong_kind_is_cut(tmp_path):
    assert len(refusal(tmp_path, f"[space]\nmicro_batch = {[*range(200_000)]}")) < 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[workload", "not TOML: "),
        ("a = 1\na = 2", "not TOML: "),
        ("a = [" * 4000, "not TOML: "),
        ("x = " + "[" * 5000, "not TOML: "),
        ("x = " + "9" * 5000, "not TOML: "),
        ("workload: {}", "not TOML: "),
        ("\0", "not TOML: "),
        (b"\xff\xfe", "cannot be read: "),
        (b'name = "\xe9"', "cannot be read: "),
    ],
)
def test_a_file_that_is_not_toml_is_refused(tmp_path, text, message):
    assert refusal(tmp_path, text).startswith(message)


@pytest.mark.parametrize("name", ["missing.toml", "folder"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(StudyError, match=f"{tmp_path / name}: cannot be read: "):
        read_study_file(tmp_path / name, BASE)


def test_a_knob_may_have_any_name_that_toml_can_write(tmp_path):
    study = read(tmp_path, '[space."int"]\nchoices = [1]\n[space."knob 2"]\nchoices = [1]\n')
    assert [dimension.name for dimension in study.space.dimensions] == ["int", "knob 2"]
    assert refusal(tmp_path, "[space.int]\nchoices = 1").startswith("[space.int] choices: ")


def test_a_knob_cannot_be_renamed_from_within(tmp_path):
    message = refusal(tmp_path, "[space.tp]\nname = 'pp'\nchoices = [1]\n")
    assert message == "[space.tp] unknown key 'name'; the table's name is the knob's"


# Inputs are read-only.


def test_a_study_file_is_never_written(tmp_path):
    path = written(tmp_path, "[budget]\r\ntrials = 3  # mine\r\n")
    os.utime(path, ns=(1, 1))
    before = path.read_bytes()
    read_study_file(path, BASE)
    assert path.read_bytes() == before
    assert path.stat().st_mtime_ns == 1
    assert list(tmp_path.iterdir()) == [path]


# Models by name.


def test_a_model_gives_its_sizes_and_its_name(tmp_path):
    workload = read(tmp_path, '[workload]\nmodel = "Llama-3.1-8B"\n').workload
    assert (workload.name, workload.model) == ("Llama-3.1-8B", "Llama-3.1-8B")
    assert (workload.hidden_size, workload.layer_count, workload.kv_head_count) == (4096, 32, 8)
    assert (workload.global_batch, workload.precision) == (BASE.workload.global_batch, "fp32")


def test_keys_of_the_file_come_before_those_of_the_model(tmp_path):
    text = '[workload]\nmodel = "debug-moe"\nname = "mine"\nlayer_count = 2\n'
    workload = read(tmp_path, text).workload
    assert (workload.name, workload.layer_count, workload.expert_count) == ("mine", 2, 8)


def test_a_dense_model_leaves_no_experts_of_the_one_below(tmp_path):
    sparse = read(tmp_path, '[workload]\nmodel = "deepseek-v2-lite"\n')
    dense = read_study_file(written(tmp_path, '[workload]\nmodel = "llama-3.2-1b"\n'), sparse)
    assert (sparse.workload.expert_count, dense.workload.expert_count) == (64, None)


def test_a_model_that_is_unknown_is_refused(tmp_path):
    assert "model 'lama-3.1-8b' is unknown; did you mean 'llama-3.1-8b'?" in refusal(
        tmp_path, '[workload]\nmodel = "lama-3.1-8b"\n'
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('effort = "much"', "effort"),
        ("thinking_tokens = 1000", "thinking_tokens"),
        ("thinking_tokens = 8192", "it must be below max_output_tokens, which is 8192"),
    ],
)
def test_how_much_a_model_thinks_is_checked(tmp_path, line, words):
    assert words in refusal(tmp_path, f"[llm]\n{line}\n")


def test_how_much_a_model_thinks_may_be_set(tmp_path):
    study = read(tmp_path, '[llm]\neffort = "max"\nthinking_tokens = 2048\n')

    assert (study.llm.effort, study.llm.thinking_tokens) == ("max", 2048)
