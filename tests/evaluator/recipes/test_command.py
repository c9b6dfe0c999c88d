"""A user's script: what it is told, what it cannot be told, how many ranks it starts."""

from dataclasses import replace

import pytest

from evaluator.recipes.catalog import recipe_of
from evaluator.recipes.command import CommandRecipe, locate
from policies.space import Space
from records.errors import StudyError
from records.study import Command, Dimension, Launch, SearchSpace, Study
from records.trial import Config

RECIPE = CommandRecipe()
TWO_RANKS = Config({"dp": 2, "fast": True})


@pytest.fixture
def over(script_study):
    """Makes studies over these knobs."""

    def make(*knobs: str, **command: object) -> Study:
        dimensions = tuple(Dimension(name=knob, choices=(1, 2, 4)) for knob in knobs)
        return replace(script_study(**command), space=SearchSpace(dimensions=dimensions))

    return make


def refusal(asked: Study) -> str:
    with pytest.raises(StudyError) as refused:
        RECIPE.check(asked)
    message = str(refused.value)
    assert "\n" not in message
    return message


# What a script is told.

SAY_ALL = "env -0 > environment; traces"


def test_a_script_sees_its_knobs_its_work_and_nothing_else_of_ours(tried, ours):
    told = tried(SAY_ALL)

    seen = told.environment
    work = "DP=2 FAST=true GLOBAL_BATCH=8 SEQUENCE_LENGTH=32 TOKENS_PER_STEP=256 RANK_COUNT=2"
    expected = dict(word.split("=") for word in work.split())
    expected |= {"WARMUP_STEPS": "2", "TIMED_STEPS": "5", "PROFILED_STEPS": "1"}
    expected |= {"WORKLOAD_NAME": "a workload", "TRACE_DIR": str(told.folder / "trace")}
    inherited = {name: ours[name] for name in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
    assert seen.items() >= (expected | inherited).items()
    assert seen.keys() & ours.keys() == {*inherited, "DP"}


def test_names_spellings_and_more_variables_are_the_study_s_to_choose(tried, script_study):
    asked = script_study(
        export={"dp": "DataParallel"},
        booleans=("True", "False"),
        environment={"NCCL_DEBUG": "WARN", "PYTHONPATH": "src", "ODD": "a b\n$(exit 1)"},
    )
    words = "a b; $(exit 1) 'c'"
    more = (
        Dimension(name="ratio", choices=(0.5, 0.1)),
        Dimension(name="words", choices=(words, "")),
    )
    space = SearchSpace(dimensions=(*asked.space.dimensions, *more), defaults={"pp": 1})
    config = Config({**TWO_RANKS.values, "ratio": 0.1, "words": words})

    seen = tried(SAY_ALL, asked=replace(asked, space=space), config=config).environment

    assert (seen["DataParallel"], seen["FAST"]) == ("2", "True")
    assert "DP" not in seen
    assert (seen["NCCL_DEBUG"], seen["PYTHONPATH"].split(":")[1:]) == ("WARN", ["src"])
    assert seen["ODD"] == "a b\n$(exit 1)"
    assert (seen["RATIO"], seen["WORDS"], seen["PP"]) == ("0.1", words, "1")


def test_variables_of_ours_are_let_through_by_name_or_pattern_but_never_over_a_knob(
    script_study, ours
):
    ours = {**ours, "CUDA_VISIBLE_DEVICES": "1"}

    chosen = RECIPE.inherited(script_study(inherit=("SLURM_*", "LD_LIBRARY_PATH", "D*")), ours)

    assert chosen.keys() == {
        *("PATH", "HOME", "LANG", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES"),
        *("SLURM_JOB_ID", "LD_LIBRARY_PATH"),
    }


RESERVED = (
    *("path", "home", "ld_preload", "LD_LIBRARY_PATH", "pythonpath", "pythonhome", "bash_env"),
    *("ifs", "env", "shellopts", "ps4", "trace_dir", "workload_name", "rank", "local_rank"),
    *("master_addr", "master_port", "cuda_visible_devices", "rank_count", "tokens_per_step"),
    *("torchelastic_run_id", "tmpdir", "lang", "lc_all", "virtual_env"),
)


def test_a_knob_does_not_touch_what_shells_and_launchers_live_by(script_study):
    def with_knob(name, choice=1):
        knob = Dimension(name=name, choices=(choice,))
        dimensions = (*script_study().space.dimensions, knob)
        return replace(script_study(), space=SearchSpace(dimensions=dimensions))

    for name in RESERVED:
        assert name.upper() in refusal(with_knob(name))
    assert "PATH" in refusal(script_study(export={"dp": "Path"})).upper()
    assert "holds a NUL" in refusal(with_knob("words", "a\0b"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({"export": {"dq": "DQ"}}, "[command.export] 'dq' is not a knob; knobs are dp, fast"),
        ({"export": {"dp": "D P"}}, "[command.export] dp: 'D P' cannot be a variable's name"),
        ({"export": {"dp": ""}}, "[command.export] dp: '' cannot be a variable's name"),
        ({"export": {"dp": "A=B"}}, "[command.export] dp: 'A=B' cannot be"),
        ({"export": {"dp": "FAST"}}, "[command.export] dp: another knob is exported as FAST too"),
        ({"environment": {"DP": "1"}}, "[command.environment] DP is set by each trial"),
        ({"environment": {"TRACE_DIR": "."}}, "[command.environment] TRACE_DIR is set by each"),
        ({"environment": {"A B": "."}}, "[command.environment] A B: no program can be given"),
        ({"environment": {"A": "\0"}}, "[command.environment] A: no program can be given"),
        ({"environment": {"HF_TOKEN": "x"}}, "[command.environment] HF_TOKEN looks like a secret"),
        ({"environment": {"ANTHROPIC_API_KEY": "x"}}, "[command.environment] ANTHROPIC_API_KEY "),
        ({"booleans": ("1", "1")}, "[command] booleans ['1', '1'] must be"),
        ({"booleans": ("false", "true")}, "[command] booleans ['false', 'true'] must be"),
        ({"booleans": ("0", "1")}, "[command] booleans ['0', '1'] must be"),
        ({"trace_files": ("/tmp/*.json",)}, "[command] trace_files '/tmp/*.json' leads out of"),
        ({"trace_files": ("../*.json",)}, "[command] trace_files '../*.json' leads out of"),
        ({"rank_count": "tp"}, "[command] rank_count: tp is unknown; known are dp, fast"),
        ({"rank_count": "dp +"}, "'dp +' is not an expression"),
    ],
)
def test_a_command_that_cannot_be_right_is_refused_before_anything_starts(
    command, message, script_study
):
    assert refusal(script_study(**command)).startswith(message)


def test_a_script_has_the_python_of_its_command(script_study):
    asked = script_study()

    refused = refusal(replace(asked, launch=replace(asked.launch, python="/job/bin/python")))

    assert "a script is started with the Python that [command] run names" in refused


def test_a_program_that_cannot_be_started_is_refused(tmp_path, script_study):
    script = tmp_path / "run"
    script.write_text("#!/bin/sh\n")

    def asked(*run):
        return replace(script_study(), command=locate(Command(run=run), tmp_path))

    assert refusal(asked("./run")) == (
        f"[command] run: '{script}' cannot be started; make it executable, or "
        f"run = [\"bash\", '{script}']"
    )
    assert "give a program that is on the PATH" in refusal(asked("no-such-program"))
    script.chmod(0o755)
    assert RECIPE.check(asked("./run")) is None


def test_only_files_of_a_command_become_paths_and_scripts_must_be_there(tmp_path):
    for words in (("bash", "run.sh"), ("python", "sub/train.py"), ("./run.sh",)):
        with pytest.raises(StudyError, match=r"\[command\] run: there is no file "):
            locate(Command(run=words), tmp_path)
    (tmp_path / "run.sh").touch()
    (tmp_path / "sub").mkdir()

    found = locate(Command(run=("bash", "run.sh", "--config=run.sh", "fast", "sub")), tmp_path)

    assert found.run == ("bash", str(tmp_path / "run.sh"), "--config=run.sh", "fast", "sub")
    assert list(found.file_digests) == [str(tmp_path / "run.sh")]


def test_a_script_that_changed_ends_the_study(tmp_path, script_study):
    (tmp_path / "run.sh").write_text("exit 0")
    asked = replace(script_study(), command=locate(script_study().command, tmp_path))
    RECIPE.job(asked, TWO_RANKS)

    (tmp_path / "run.sh").write_text("exit 1")

    with pytest.raises(StudyError, match="is not what it was when the study began"):
        RECIPE.job(asked, TWO_RANKS)
    (tmp_path / "run.sh").unlink()
    with pytest.raises(StudyError, match="cannot be read"):
        RECIPE.job(asked, TWO_RANKS)


# How many ranks.


@pytest.mark.parametrize(
    ("knobs", "product"),
    [
        (("tp", "dp", "pp", "micro_batch"), "dp * tp * pp"),
        (("dp_shard", "dp_replicate", "cp", "ep"), "dp_replicate * dp_shard * cp"),
    ],
)
def test_without_an_expression_the_ranks_are_the_product_of_the_degrees(knobs, product, over):
    assert RECIPE.complete(over(*knobs)).command.rank_count == product


def test_without_a_command_or_degrees_a_study_is_refused(over, script_study):
    with pytest.raises(StudyError, match=r"needs a \[command\] table"):
        RECIPE.complete(replace(script_study(), command=None))
    with pytest.raises(StudyError, match="rank_count is not given, and no knob is called dp, "):
        RECIPE.complete(over("width"))
    given = RECIPE.complete(over("width", rank_count="world_size"))
    assert given.command.rank_count == "world_size"
    assert RECIPE.complete(given) == given


def test_configurations_with_more_ranks_than_there_are_are_never_launched(over):
    asked = RECIPE.complete(over("tp", "dp"))

    space = Space(asked.space, asked.workload, asked.environment)

    assert len(space.feasible) == 6
    assert space.check({"tp": 4, "dp": 2}) == (
        "breaks rank_count: 1 <= (dp * tp) <= world_size (the script starts this many ranks) "
        "with dp=2, tp=4, world_size=4",
    )


def test_ranks_do_not_hang_on_a_knob_that_may_be_left_out(script_study):
    dimensions = (*script_study().space.dimensions, Dimension(name="pp", choices=(2,), when="fast"))
    asked = replace(script_study(rank_count="dp * pp"), space=SearchSpace(dimensions=dimensions))

    assert "pp is left out of configurations where it has no effect" in refusal(asked)
    known = replace(asked, space=replace(asked.space, defaults={"pp": 1}))
    assert RECIPE.job(known, Config({"dp": 4, "fast": False})).world_size == 4


@pytest.mark.parametrize("expression", ["dp / 4", "dp - 2"])
def test_ranks_are_whole_and_at_least_one(expression, script_study):
    with pytest.raises(StudyError, match=r"rank_count 'dp . \d' is "):
        RECIPE.job(script_study(rank_count=expression), TWO_RANKS)


def test_recipes_are_found_by_name(script_study):
    assert isinstance(recipe_of(script_study()), CommandRecipe)
    with pytest.raises(StudyError, match=r"recipe 'comand' is unknown; did you mean 'command'\?"):
        recipe_of(replace(script_study(), launch=Launch(recipe="comand")))


@pytest.fixture
def running(script_study):
    """The study of a script whose command is this."""

    def of(*run):
        study = RECIPE.complete(script_study())
        return replace(study, command=replace(study.command, run=("echo", *run)))

    return of


@pytest.mark.parametrize(
    ("part", "filled"),
    [
        ("--dp={dp}", ["--dp=2"]),
        ("{dp}x{fast}", ["2xtrue"]),
        ("--nproc-per-node={rank_count}", ["--nproc-per-node=2"]),
        ("{args}", ["--dp=2", "--fast=true"]),
        ("{{dp}}", ["{dp}"]),
        ("${dp} {1..3} {print $1} {}", ["${dp} {1..3} {print $1} {}"]),
    ],
)
def test_a_knob_in_braces_is_what_the_configuration_sets(running, part, filled):
    study = running(part)

    RECIPE.check(study)

    job = RECIPE.job(study, TWO_RANKS)
    assert [*job.argv][1:] == filled


@pytest.mark.parametrize(
    ("run", "arguments"),
    [
        (("--dp={dp}", "--steps=5", "{mode}"), ("--dp=2",)),
        (("--nproc-per-node={rank_count}", "{args}"), ("--dp=2", "--fast=true", "--mode=")),
        (("train",), ()),
    ],
    ids=["places and a switch that is off", "all as flags", "variables"],
)
def test_the_arguments_of_knobs_are_those_that_the_command_gives(running, run, arguments):
    study = running(*run)
    mode = Dimension(name="mode", choices=("", "--deep"))
    space = replace(study.space, dimensions=(*study.space.dimensions, mode))
    config = Config({**TWO_RANKS.values, "mode": ""})

    assert RECIPE.knob_arguments(replace(study, space=space), config) == arguments


def test_braces_that_name_no_knob_are_refused_before_any_launch(running):
    with pytest.raises(StudyError, match=r"\{batch_size\} is not a knob; knobs are dp, fast"):
        RECIPE.check(running("--batch-size={batch_size}"))


def test_a_knob_that_may_be_left_out_needs_a_default(running):
    study = running("--chunk={chunk}")
    chunk = Dimension(name="chunk", choices=(1, 2), when="dp > 1")
    space = replace(study.space, dimensions=(*study.space.dimensions, chunk))

    with pytest.raises(StudyError, match=r"\{chunk\} is left out .* give it a default"):
        RECIPE.check(replace(study, space=space))
