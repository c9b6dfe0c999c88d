"""A study file is laid over the built-in study; what it cannot mean is refused in its own words."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from policies.contract import workload_fields
from records.codec import from_json, to_json
from records.errors import StudyError
from records.study import Constraint, Context, Dimension, Environment, Link, Objective, Range, Study
from records.workload import Message
from search.study import study_file
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study, read_study_file

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "collectives" / "study.toml"
BASE = builtin_study(
    Environment(name="m", device="cpu", accelerator="here", world_size=4, ranks_per_node=4)
)
COLLECTIVES = '[launch]\nrecipe = "collectives"\n'
MESSAGE = '[[message]]\ncollective = "all_gather"\nsize_bytes = 64\n'


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch):
    monkeypatch.setattr(study_file, "absence", lambda _adapter: "not here")


@pytest.fixture
def read(tmp_path):
    def run(text, base=BASE):
        path = tmp_path / "study.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_study_file(path, base)

    return run


@pytest.mark.parametrize(
    ("python", "located"),
    [
        ("env/bin/python", "{folder}/env/bin/python"),
        ("/opt/env/bin/python", "/opt/env/bin/python"),
        ("~/env/bin/python", "~/env/bin/python"),
        ("python3.10", "python3.10"),
    ],
)
def test_the_python_of_the_ranks_is_relative_to_the_study_file(read, tmp_path, python, located):
    study = read(f'[launch]\npython = "{python}"\n')

    assert study.launch.python == located.format(folder=tmp_path)


@pytest.fixture
def refusal(read, tmp_path):
    """Reads a study file that is refused; gives the one line that says why, behind its name."""

    def run(text):
        with pytest.raises(StudyError) as refused:
            read(text)
        message, start = str(refused.value), f"{tmp_path / 'study.toml'}: "
        assert "\n" not in message
        assert message.startswith(start)
        return message.removeprefix(start)

    return run


def knobs(study):
    return [dimension.name for dimension in study.space.dimensions]


# What is laid over what.


def test_an_empty_file_changes_nothing(read):
    assert read("") == BASE
    assert read("# only a comment\n[budget]\n[workload]\n") == BASE


def test_a_key_that_is_given_replaces_and_the_others_stay(read):
    study = read('name = "mine"\n[workload]\nglobal_batch = 8\n[budget]\ntrials = 3\n')
    assert study.name == "mine"
    assert study.workload == replace(BASE.workload, global_batch=8)
    assert study.budget == replace(BASE.budget, trials=3)
    assert study.space == BASE.space
    assert read("[budget]\npatience = 2\n", study).budget == replace(study.budget, patience=2)
    assert read("parallel = 2\n").parallel == 2


def test_a_space_replaces_knobs_and_constraints_as_a_whole(read):
    study = read(
        '[space.tp]\nchoices = [1, 2]\n[space.mb]\nwhen = "tp > 1"\n'
        'range = { low = 1, high = 16, scale = "doubling" }\ndescription = "batch"\n'
    )
    batches = Range(low=1, high=16, scale="doubling")
    assert study.space.dimensions == (
        Dimension(name="tp", choices=(1, 2)),
        Dimension(name="mb", range=batches, when="tp > 1", description="batch"),
    )
    assert study.space.constraints == ()


@pytest.mark.parametrize("knobs", ["", "[space.tp]\nchoices = [1, 2]\n"])
@pytest.mark.parametrize("knobs_first", [True, False])
def test_constraints_replace_constraints_and_keep_knobs(read, knobs, knobs_first):
    constraint = '[[constraint]]\nname = "c"\nexpression = "tp < 2"\n'
    study = read(knobs + constraint if knobs_first else constraint + knobs)
    assert study.space.constraints == (Constraint(name="c", expression="tp < 2"),)
    assert len(study.space.dimensions) == (1 if knobs else len(BASE.space.dimensions))


def test_numbers_and_words_keep_their_types(read):
    study = read(
        "[space.a]\nchoices = [1, 2]\n[space.b]\nchoices = [1.0, 2.5]\n"
        '[space.c]\nchoices = [true, false]\n[space.d]\nchoices = ["1", "true"]\n'
    )
    choices = [dimension.choices for dimension in study.space.dimensions]
    assert repr(choices) == "[(1, 2), (1.0, 2.5), (True, False), ('1', 'true')]"


def test_a_knob_may_have_any_name_that_toml_can_write(read):
    study = read('[space."int"]\nchoices = [1]\n[space."knob 2"]\nchoices = [1]\n')
    assert knobs(study) == ["int", "knob 2"]


def test_links_are_in_bytes_and_seconds(read):
    study = read(
        "[environment]\nscale_up = { bandwidth_bytes_per_s = 450e9, latency_s = 1e-6 }\n"
        "scale_out = { bandwidth_bytes_per_s = 50_000_000_000 }\n"
    )
    assert study.environment.scale_up == Link(bandwidth_bytes_per_s=4.5e11, latency_s=1e-6)
    assert study.environment.scale_out == Link(bandwidth_bytes_per_s=5e10)


def test_a_resolved_study_can_be_given_again_as_a_file(read):
    document = json.loads(to_json(BASE))
    lines = [f"{key} = {json.dumps(document[key])}" for key in ("name", "seed_policy", "strategy")]
    for section in ("workload", "environment", "objective", "budget", "measure", "launch", "llm"):
        lines.append(f"[{section}]")
        lines += [
            f"{key} = {json.dumps(value)}"
            for key, value in document[section].items()
            if value is not None and not isinstance(value, dict)
        ]
    assert read("\n".join(lines)) == BASE


def test_contexts_are_over_the_study_of_the_file_and_stay_where_it_has_none(read):
    other = Context(name="big", workload=BASE.workload, environment=BASE.environment)
    study = read('[workload]\nglobal_batch = 8\n[[context]]\nname = "one"\nheld_out = true\n')
    assert study.contexts == (replace(other, name="one", workload=study.workload, held_out=True),)
    assert read("[budget]\ntrials = 3\n", replace(BASE, contexts=(other,))).contexts == (other,)


def test_the_objective_table_lists_what_is_beside_the_main_one(read):
    study = read(
        '[objective]\nlimits = ["peak_memory < 30 GiB"]\n'
        'more = [{ expression = "gpus" }, { expression = "mfu", direction = "maximize" }]\n'
        "[environment]\naccelerator_usd_per_hour = 2.5\n"
    )
    further = Objective(expression="gpus"), Objective(expression="mfu", direction="maximize")
    assert (study.objective, study.more_objectives) == (BASE.objective, further)
    assert study.limits == ("peak_memory < 30 GiB",)
    assert study.environment.accelerator_usd_per_hour == 2.5
    assert from_json(Study, to_json(study)) == study
    again = read('[objective]\nexpression = "mfu"\n', study)
    assert (again.objective.expression, again.more_objectives) == ("mfu", further)


def test_how_much_a_model_thinks_may_be_set(read):
    llm = read('[llm]\neffort = "max"\nthinking_tokens = 2048\n').llm
    assert (llm.effort, llm.thinking_tokens) == ("max", 2048)


def test_a_study_file_is_never_written(tmp_path):
    path = tmp_path / "study.toml"
    path.write_bytes(content := b"[budget]\r\ntrials = 3  # mine\r\n")
    os.utime(path, ns=(1, 1))
    read_study_file(path, BASE)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (content, 1)
    assert list(tmp_path.iterdir()) == [path]


# What is refused.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budgt = 1", "unknown key 'budgt'; did you mean 'budget'?"),
        ("[mesure]\nx = 1", "unknown key 'mesure'; did you mean 'measure'?"),
        ("[constraints]", "unknown key 'constraints'; did you mean 'constraint'?"),
        ("[[messages]]", "unknown key 'messages'; did you mean 'message'?"),
        ("limits = ['a < 1']", "unknown key 'limits'"),
        ("[budget]\ntrial = 1", "[budget] unknown key 'trial'; did you mean 'trials'?"),
        ("[budget]\nint = 1", "[budget] unknown key 'int'; known are trials, launches, patience, "),
        ("[workload]\nglobalbatch = 1", "[workload] unknown key 'globalbatch'; did you mean 'glob"),
        ("[measure]\ntimeout = 1", "[measure] unknown key 'timeout'; did you mean 'timeout_s'?"),
        ("[llm]\napi_key = 'x'", "[llm] unknown key 'api_key'; known are model, base_url, "),
        (
            "[environment]\nscale_up = { bandwidth_gbps = 400 }",
            "[environment.scale_up] unknown key 'bandwidth_gbps'; did you mean 'bandwidth_bytes",
        ),
        (
            "[space.a]\nchoices = [1]\n[space.tp]\nchoises = [1]",
            "[space.tp] unknown key 'choises'; did you mean 'choices'?",
        ),
        (
            "[space.tp]\nrange = { low = 1, hihg = 2 }",
            "[space.tp.range] unknown key 'hihg'; did you mean 'high'?",
        ),
        ("[space.tp]\nname = 'pp'\n", "[space.tp] unknown key 'name'; the table's name is the kn"),
        (
            "[[constraint]]\nname = 'a'\nexpresion = 'b'",
            "[constraint.0] unknown key 'expresion'; did you mean 'expression'?",
        ),
        (
            "[[context]]\nname = 'a'\nworkload = { seq = 'b' }",
            "[context.0.workload] unknown key 'seq'; ",
        ),
        ("[[context]]\nname = 'a'\nspace = {}", "[context] unknown key 'space'; a context has"),
        (
            f"{COLLECTIVES}[[message]]\ncollective = 'all_reduce'\nsize_byte = 8",
            "[message.0] unknown key 'size_byte'; did you mean 'size_bytes'?",
        ),
        ("[objective]\nlimit = ['a < 1']", "[objective] unknown key 'limit'; did you mean 'limits"),
        (
            "[objective]\nmore = [{ expresion = 'gpus' }]",
            "[objective.more.0] unknown key 'expresion'; did you mean 'expression'?",
        ),
    ],
)
def test_an_unknown_key_is_named_with_its_table_and_the_closest_known_one(refusal, text, message):
    assert refusal(text).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 4", "name: Input should be a valid string"),
        ("name = 2026-01-01", "2026-01-01 is a date, which no key accepts; quote it"),
        ("random_seed = 1.0", "random_seed: Input should be a valid integer"),
        ("parallel = 0", "parallel is 0; it must be at least 1"),
        ("budget = 3", "[budget] must be a table, not 3"),
        ("objective = 'step_time'", "[objective] must be a table, not 'step_time'"),
        ("[[space]]", "[space] must be a table, not [{}]"),
        ("[space]\ntp = [1, 2]", "[space.tp] must be a table, not [1, 2]"),
        ("[constraint]\nname = 'a'", "[constraint] must be written [[constraint]], once for"),
        (f"{COLLECTIVES}[message]", "[message] must be written [[message]], once for"),
        ("[context]\nname = 'a'", "[context] must be written [[context]], once for"),
        ("[workload]\nglobal_batch = '16'", "[workload] global_batch: Input should be a valid int"),
        ("[workload]\nglobal_batch = 16.0", "[workload] global_batch: Input should be a valid int"),
        ("[workload]\nglobal_batch = true", "[workload] global_batch: Input should be a valid int"),
        ("[workload]\nglobal_batch = 0", "[workload] global_batch is 0; it must be at least 1"),
        ("[workload]\nphase = 'train'", "[workload] phase: Input should be 'training', 'infer"),
        ("[workload]\nmodel = 'lama-3.1-8b'", "[workload] model 'lama-3.1-8b' is unknown; did you"),
        ("[environment]\ndevice = 'abacus'", "[environment] device: Input should be 'cpu', 'cuda'"),
        ("[environment]\nscale_up = 400", "[environment.scale_up] must be a table, not 400"),
        (
            "[environment]\nscale_up = { bandwidth_bytes_per_s = 0 }",
            "[environment] bandwidth_bytes_per_s is 0.0; it must be finite and above 0",
        ),
        ("[environment]\nscale_up = {}", "[environment.scale_up] needs bandwidth_bytes_per_s"),
        ("[environment]\naccelerator_usd_per_hour = 0", "[environment] accelerator_usd_per_hour"),
        ("[environment.software]\ntorch = 2.0", "[environment.software] torch: Input should be a"),
        ("[measure]\ntimeout_s = inf", "[measure] timeout_s: Input should be a finite number"),
        ("[measure]\ntimeout_s = nan", "[measure] timeout_s: Input should be a finite number"),
        ("[measure]\ntimed_steps = 4", "[measure] timed_steps is 4; it must be at least 5"),
        ("[budget]\nmax_wall_s = -1", "[budget] max_wall_s is -1.0; it must be finite and above 0"),
        ("[llm]\neffort = 'much'", "[llm] effort: "),
        ("[llm]\nthinking_tokens = 1000", "[llm] thinking_tokens is 1000; it must be at least"),
        ("[llm]\nthinking_tokens = 8192", "[llm] thinking_tokens is 8192; it must be below max_"),
        ("[objective]\ndirection = 'down'", "[objective] direction: Input should be 'minimize' or"),
        ("[objective]\nmore = 'gpus'", "[objective] more: "),
        ("[objective]\nlimits = [3]", "[objective.limits] 0: "),
        ("[space.tp]\nchoices = 4", "[space.tp] choices: Input should be a valid array"),
        ("[space.int]\nchoices = 1", "[space.int] choices: Input should be a valid array"),
        (
            "[space.tp]\nchoices = [1, [2]]",
            "[space.tp.choices] 1: [2] is not a number, a text, true",
        ),
        (
            "[space.tp]\nchoices = [1, nan]",
            "[space.tp.choices] 1: nan is not a number, a text, true",
        ),
        ("[space.tp]\nrange = { low = 1 }", "[space.tp.range] needs high"),
        ("[space.tp]\nrange = { low = 1, high = 'x' }", "[space.tp.range] high: Input should be"),
        ("[space.tp]\nrange = { low = 1, high = inf }", "[space.tp.range] high: Input should be"),
        ("[space.tp]\nrange = [1, 4]", "[space.tp.range] must be a table, not [1, 4]"),
        ("[[constraint]]\nname = 'a'", "[constraint.0] needs expression"),
        (f"{COLLECTIVES}[[message]]\nsize_bytes = 8", "[message.0] needs collective"),
        (
            f"{COLLECTIVES}{MESSAGE}[[message]]\ncollective = 'all_redcue'\nsize_bytes = 8",
            "[message.1] collective: Input should be 'all_reduce'",
        ),
        (f"{COLLECTIVES}{MESSAGE}count = 0", "[[message]] count is 0; it must be at least 1"),
        (
            f"{COLLECTIVES}{MESSAGE}reduce_op = 'avg'\ndtype = 'int32'",
            "[[message]] reduce_op avg has no meaning with whole numbers",
        ),
        (MESSAGE, "[workload] phase 'training' exchanges no separate messages; leave [[message"),
    ],
)
def test_a_value_that_cannot_be_meant_is_named_with_its_place(refusal, text, message):
    assert refusal(text).startswith(message)


def test_a_long_value_of_the_wrong_kind_is_cut(refusal):
    assert len(refusal(f"[space]\nmicro_batch = {[*range(200_000)]}")) < 300


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
def test_a_file_that_is_not_toml_is_refused(refusal, text, message):
    assert refusal(text).startswith(message)


@pytest.mark.parametrize("name", ["missing.toml", "folder"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(StudyError, match=f"{tmp_path / name}: cannot be read: "):
        read_study_file(tmp_path / name, BASE)


# Models by name.


def test_a_model_gives_its_sizes_and_its_name(read):
    workload = read('[workload]\nmodel = "Llama-3.1-8B"\n').workload
    assert (workload.name, workload.model) == ("Llama-3.1-8B", "Llama-3.1-8B")
    assert (workload.hidden_size, workload.layer_count, workload.kv_head_count) == (4096, 32, 8)
    assert (workload.global_batch, workload.precision) == (BASE.workload.global_batch, "fp32")


def test_keys_of_the_file_come_before_those_of_the_model(read):
    workload = read('[workload]\nmodel = "debug-moe"\nname = "mine"\nlayer_count = 2\n').workload
    assert (workload.name, workload.layer_count, workload.expert_count) == ("mine", 2, 8)


def test_a_dense_model_leaves_no_experts_of_the_one_below(read):
    sparse = read('[workload]\nmodel = "deepseek-v2-lite"\n')
    dense = read('[workload]\nmodel = "llama-3.2-1b"\n', sparse)
    assert (sparse.workload.expert_count, dense.workload.expert_count) == (64, None)


# Studies of collectives: messages in tables of their own, the rest made for them.


def test_the_recipe_of_collectives_alone_makes_a_study(read):
    study = completed(read(COLLECTIVES))
    assert (study.workload.phase, study.workload.tokens_per_step) == ("communication", 0)
    assert {message.collective for message in study.workload.messages} == {"all_reduce"}
    assert (study.seed_policy, study.objective.expression) == ("first", "step_time")
    assert (study.measure.profiled_steps, study.launch.memory_budget_bytes) == (0, None)
    first = {"in_flight": 1, "fusion_bytes": 0, "chunk_count": 1}
    assert dict(space_of(study).feasible[0].values) == first
    assert knobs(study) == [*first]


def test_with_mpi_its_algorithms_are_searched_beside_gloo(read, monkeypatch):
    monkeypatch.setattr(study_file, "absence", lambda _adapter: None)
    study = completed(read(COLLECTIVES))
    assert study.space.dimensions[0].choices == ("c10d", "mpi")
    assert {"ompi_allreduce_algorithm", "ompi_single_copy"} <= set(knobs(study))
    assert space_of(study).feasible[0].values["comm_adapter"] == "c10d"


@pytest.mark.parametrize("asked", [COLLECTIVES, f'{COLLECTIVES}[environment]\ndevice = "cuda"\n'])
def test_on_gpus_nccl_is_searched(read, asked):
    machine = replace(BASE.environment, device="cuda" if asked == COLLECTIVES else "cpu")
    study = completed(read(asked, builtin_study(machine)))
    assert {"nccl_algo", "nccl_proto"} <= set(knobs(study))
    assert study.space.defaults["backend"] == "nccl"
    assert len(space_of(study).feasible) > 100


@pytest.mark.parametrize("workload", ["", '[workload]\nname = "mine"\n'])
@pytest.mark.parametrize("messages_first", [True, False])
def test_messages_replace_those_of_the_recipe(read, workload, messages_first):
    messages = f'{MESSAGE}[[message]]\ncollective = "barrier"\ncount = 2\n'
    study = read((messages + workload if messages_first else workload + messages) + COLLECTIVES)
    assert study.workload.messages == (
        Message(collective="all_gather", size_bytes=64),
        Message(collective="barrier", count=2),
    )
    assert study.workload.name == ("mine" if workload else "all-reduces")
    assert workload_fields(study.workload)["messages"][0]["size_bytes"] == 64
    again = read(f"{COLLECTIVES}[budget]\ntrials = 3\n", study)
    assert again == replace(study, budget=replace(study.budget, trials=3))


def test_a_knob_in_the_file_replaces_all_of_the_recipe(read):
    study = completed(read(f"{COLLECTIVES}[space.in_flight]\n"))
    assert (knobs(study), study.space.dimensions[0].choices) == (["in_flight"], (1, 2, 4))


def test_messages_alone_do_not_make_another_recipe_exchange_them(read):
    with pytest.raises(StudyError, match='give recipe = "collectives" under'):
        completed(read(f'[workload]\nphase = "communication"\n{MESSAGE}'))


def test_the_example_of_the_documents_searches_every_setup_once():
    assert len(space_of(completed(read_study_file(EXAMPLE, BASE))).feasible) == 2 * (6 + 4)
