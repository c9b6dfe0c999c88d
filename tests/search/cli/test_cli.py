"""Commands in one process: what they print, where, and with which exit code."""

import json
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from evaluator.traces.errors import TraceError
from records.errors import CclsearchError, CodecError, StoreBusy, StudyError
from records.store.store import Store
from records.trial import FailureKind
from search.cli import main as cli
from search.cli.main import exit_code, loaded, main
from search.settings import Interrupted, ProviderError
from tests.support import records as testing
from tests.support.evaluator import Fails, Takes

RUN_OPTIONS = """
    --objective --minimize --maximize --limit --config --card --tuning --card-bandwidths
    --batch-size --gpus --command --strategy --trials --patience --max-wall --model --max-tokens
    --max-cost --parallel --seed-policy --from --trust --store --json --help
"""
COMMANDS = """
    bench analyze, bench collectives, bench mix, bench search, best, compare, doctor, entry check,
    export, gc, import, leaderboard, list, mcp, metrics compute, metrics list, metrics show,
    policy check, replay, report, resume, run, serve, show, space check, space estimate,
    space explain, space sample, space size, trace breakdown, trace collectives, trace diff,
    trace kernels, trace report, trace stragglers, trial files, trial logs, trial script,
    trial show, version
"""
VALID = "dp_replicate=1 dp_shard=2 tp=1 pp=2 micro_batch=2 activation_checkpointing=none"
BACK = "\x1b[2J"
STUDY = "20260101-000000-aaaa"


def commands(named=None, prefix=()):
    """Every command as its words and its definition."""
    for name, command in (named or {name: loaded(name) for name in cli.COMMANDS}).items():
        if hasattr(command, "commands"):
            yield from commands(command.commands, (*prefix, name))
        else:
            yield " ".join((*prefix, name)), command


@pytest.fixture
def finished(tabular):
    """A finished study: seed, a better one, a failure."""
    study = tabular(
        {
            0: Takes(step_time_s=0.5),
            1: Takes(step_time_s=0.25),
            2: Fails(kind=FailureKind.OUT_OF_MEMORY, message=f"too big{BACK}"),
        }
    )
    study.run()
    return study


@pytest.fixture
def on_record(cclsearch, finished):
    """Runs a command on the store of the finished study."""

    def run(*arguments):
        return cclsearch(*arguments, "--store", finished.root)

    return run


def test_the_commands_are_these():
    assert sorted(words for words, _ in commands()) == " ".join(COMMANDS.split()).split(", ")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_the_help_of_each(name):
    _, line = cli.COMMANDS[name]

    assert loaded(name).help.partition("\n")[0] == line


def test_the_options_of_run_are_these():
    command = dict(commands())["run"]
    with command.make_context("run", []) as context:
        named = [parameter.opts[-1] for parameter in command.get_params(context)]
    assert named == RUN_OPTIONS.split()


ALL_IN_ONE = """
import sys
from search.cli.main import main
for line in sys.argv[1:]:
    sys.argv = ["cclsearch", *line.split()]
    try:
        main()
    except SystemExit as leaving:
        print(f"== {leaving.code}")
print(*sys.modules, file=sys.stderr)
"""


def loaded_by(*lines, store=None):
    """What commands print in a process of their own, if they end with 0, and what they load."""
    lines = [f"{line} --store {store}" for line in lines] if store else lines
    told = subprocess.run(
        [sys.executable, "-c", ALL_IN_ONE, *lines], capture_output=True, text=True, check=True
    )
    *printed, end = told.stdout.split("== 0\n")
    assert (len(printed), end) == (len(lines), ""), told.stdout
    return printed, set(told.stderr.splitlines()[-1].split())


HEAVY = {"torch", "pandas", "scipy", "anthropic", "sqlite_utils", "matplotlib"}
MEASURING = {
    *("sklearn", "fastapi", "yaml", "policies.sandbox", "search.cli.run"),
    *("evaluator.recipes.builtin", "evaluator.traces.readers.formats", "search.study.cards"),
}


@pytest.mark.parametrize(
    ("lines", "heavy"),
    [
        (
            ("--help", "run -h", "resume -h", "list -h", "trial show -h", "space check -h"),
            {"numpy"},
        ),
        (("metrics compute -h", "trace breakdown -h"), set()),  # whose modules compute with arrays
    ],
)
def test_help_is_told_without_loading_what_searching_needs(lines, heavy):
    printed, modules = loaded_by(*lines)

    assert modules & (HEAVY | heavy) == set()
    assert all(each.startswith("Usage: cclsearch") for each in printed)


def test_the_list_of_commands_is_told_without_loading_any():
    (printed,), modules = loaded_by("--help")

    assert not modules & {module for module, _ in cli.COMMANDS.values()}
    assert not modules & {"records.store", "records.study", "records.scrub", "pydantic", "numpy"}
    assert all(f"\n  {name} " in printed for name in cli.COMMANDS)


@pytest.fixture
def two_trials(tmp_path):
    """The folder of a store with a study of two trials."""
    with closing(Store(tmp_path / "store")) as records:
        records.add_study(STUDY, testing.study(), "test", testing.history(0.25, 0.5).trials, [])
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("lines", "heavy"),
    [
        (
            ("list", "show", "best", f"trial show {STUDY} 0", "list --json"),
            {"numpy", "evaluator.traces.analysis.collectives"},
        ),
        (("leaderboard",), set()),  # it loads every metric, for its unit
    ],
)
def test_reading_a_store_loads_nothing_that_only_measuring_needs(two_trials, lines, heavy):
    _, modules = loaded_by(*lines, store=two_trials)

    assert modules & (HEAVY | MEASURING | heavy) == set()


def test_comparing_trials_loads_nothing_that_reads_files_of_a_benchmark(two_trials):
    _, modules = loaded_by(f"compare trial:{STUDY}:0 trial:{STUDY}:1", store=two_trials)

    assert not modules & {"evaluator.timing.nvbench.read", "evaluator.timing.nvbench.compare"}


def test_what_reads_no_records_loads_no_readers_of_traces():
    _, modules = loaded_by("metrics list", "policy check sharded", "space size")

    assert modules & {*HEAVY, "evaluator.traces.readers.formats"} == set()


def test_no_command_spends_its_end_on_collecting_garbage():
    program = (
        "import atexit, gc\nfrom search.cli.main import main\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0))\nmain()\n"
    )

    printed = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True)

    assert printed.stdout.split()[-1] == b"True"


def test_no_arguments_show_the_help(cclsearch):
    ended = cclsearch()

    assert ended.code == 2
    assert "Start with:\n    cclsearch run --objective step_time\n" in ended.out + ended.err


def test_the_version_is_that_of_the_installation(cclsearch):
    ended = cclsearch("version")
    assert all(cclsearch(option) == ended for option in ("--version", "-V"))

    assert (ended.code, ended.err) == (0, "")
    assert ended.out[0].isdigit()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--nonsense", "No such option: --nonsense"),
        ("rnu", "Did you mean 'run'?"),
        ("run --nonsense", "Try 'cclsearch run -h' for help."),
        ("run --trials 0", "greater than or equal to 1"),
        ("run --trials many", "--trials"),
        ("best --format yaml", "--format"),
        ("run --minimize --maximize", "error: --minimize and --maximize exclude each other"),
        ("run --objective step_tmie", "did you mean 'step_time'?"),
        ("run --objective step_time*mfu", "with --minimize or --maximize"),
        ("run --limit peak_memory", "write it as in 'peak_memory < 30 GiB'"),
        ("run --limit step_time<3GiB", "GiB is a unit of size, but step_time is in s"),
        ("run --strategy cordinate", "did you mean 'coordinate'?"),
        ("run --strategy llm", "export it, or use --strategy offline"),
        ("run --seed-policy shraded", "did you mean 'sharded'?"),
        ("run -c missing.toml", "error: missing.toml"),
        ("run --card missing.yaml", "error: missing.yaml"),
        ("run --tuning tuning.yaml", "add --card FILE"),
        ("space check tp", "error: 'tp' is not KNOB=VALUE"),
        ("space check tp=3", "knob tp is 3"),
        ("trial show", "TRIAL"),
        ("trial show abc", "give its number, as in `cclsearch trial show 3`"),
        ("trial show a b 3", "is not a trial"),
        ("trial show -1", "No such option"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_to_do(cclsearch, arguments, words):
    ended = cclsearch(*arguments.split())

    assert ended.code == 2
    assert ended.out == ""
    assert words in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("command", ["show", "best", "resume", "trial show 0", "trial logs 0"])
def test_reading_where_no_records_are_says_how_to_start_and_creates_nothing(cclsearch, command):
    ended = cclsearch(*command.split())

    assert (ended.code, ended.out) == (4, "")
    assert "start with `cclsearch run --objective step_time`" in ended.err
    assert list(Path.cwd().iterdir()) == []


def test_listing_where_no_records_are_is_no_error(cclsearch):
    assert cclsearch("list").code == 0
    assert json.loads(cclsearch("list", "--json").out) == []
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("show 9999", "no study '9999'"),
        ("best 9999", "no study '9999'"),
        ("resume 9999", "no study '9999'"),
        ("trial show 9999 0", "no study '9999'"),
        ("trial show 7", "has no trial 7; it has 3, see `cclsearch show 20260101-000000-aaaa"),
        ("trial logs 0 --rank 5", "trial 0 has no log of rank 5"),
    ],
)
def test_what_is_not_on_record_ends_with_2_and_says_where_to_look(on_record, arguments, words):
    ended = on_record(*arguments.split())

    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err


@pytest.mark.parametrize("command", ["list", "show", "resume"])
def test_a_store_that_is_no_store_ends_with_4(cclsearch, tmp_path, command):
    (tmp_path / "cclsearch.db").write_text("no database", encoding="utf-8")

    ended = cclsearch(command, "--store", tmp_path)

    assert (ended.code, ended.out) == (4, "")
    assert f"cannot open the store {tmp_path}" in ended.err


def test_a_store_that_cannot_be_made_ends_with_4(cclsearch, tmp_path):
    (tmp_path / "file").touch()

    ended = cclsearch("run", "--store", tmp_path / "file")

    assert ended.code == 4
    assert "give another with --store" in ended.err


def test_a_study_is_shown_with_its_trials_and_its_finding(on_record, finished):
    ended = on_record("show")

    assert (ended.code, ended.err) == (0, "")
    assert [line.split()[0] for line in ended.out.splitlines()][:4] == ["study", *["trial"] * 3]
    assert "best: trial 1: --n=1" in ended.out
    assert f"next: cclsearch resume {finished.study_id} --trials 5 --store" in ended.out


def test_suggested_commands_name_the_store_only_where_they_must(cclsearch, finished, monkeypatch):
    monkeypatch.setenv("CCLSEARCH_STORE", str(finished.root))

    ended = cclsearch("show")

    assert f"next: cclsearch best {finished.study_id} --format args\n" in ended.out
    assert "--store" not in ended.out


def test_a_suggested_command_works_as_it_is_printed(cclsearch, on_record):
    shown = on_record("show").out.splitlines()
    suggested = next(line.removeprefix("next: ") for line in shown if line.startswith("next: "))

    ended = cclsearch(*shlex.split(suggested)[1:])

    assert (ended.code, ended.out) == (0, "--n=1\n")


@pytest.mark.parametrize("command", ["show", "trial show 1"])
def test_a_suggested_command_finds_a_store_whose_name_has_spaces(
    finished, cclsearch, tmp_path, command
):
    store = tmp_path / "a b" / "c"
    shutil.copytree(finished.root, store)

    ended = cclsearch(*command.split(), "--store", store)

    suggested = [line for line in ended.out.splitlines() if line.startswith("next: ")]
    assert suggested
    for line in suggested:
        assert shlex.split(line)[-2:] == ["--store", str(store)]


@pytest.mark.parametrize(
    ("form", "printed"), [("args", "--n=1\n"), ("env", "N=1\n"), ("json", '{\n "n": 1\n}\n')]
)
def test_the_best_configuration_is_printed_for_other_programs(on_record, form, printed):
    assert on_record("best", "--format", form).out == printed


def test_a_study_without_a_measured_trial_has_no_best(tabular, cclsearch):
    study = tabular({0: Fails(kind=FailureKind.CRASH)})
    study.run()

    ended = cclsearch("best", "--store", study.root)

    assert ended.code == 4
    assert "has no measured trial; see `cclsearch show" in ended.err


def test_a_trial_of_the_newest_study_needs_only_its_number(on_record):
    assert on_record("trial", "show", "1").out == on_record("trial", "show", "2026", "1").out


def test_a_trial_is_shown_with_policy_metrics_and_files(on_record):
    out = on_record("trial", "show", "1").out

    assert "def generate_config(workload, environment):" in out
    assert "step_time 0.25 s lower" in " ".join(out.split())
    assert Path(next(line for line in out.splitlines() if "rank0.log" in line).split()[-1]).exists()


def test_the_logs_of_a_trial_are_printed(on_record):
    assert on_record("trial", "logs", "1").out == "== rank0.log\nlaunch 0 of n=1\n"
    assert on_record("trial", "logs", "1", "--rank", "0").out.startswith("== rank0.log\n")


def test_the_files_of_a_trial_are_copied_under_their_own_names(on_record, tmp_path):
    ended = on_record("trial", "files", "1", "--to", tmp_path / "one", "--json")

    paths = [tmp_path / "one" / name for name in ("policy.py", "rank0.log")]
    assert json.loads(ended.out) == [str(path) for path in paths]
    assert paths[1].read_text(encoding="utf-8") == "launch 0 of n=1\n"


def test_files_that_cannot_be_copied_end_with_4(on_record, tmp_path):
    (tmp_path / "file").touch()

    ended = on_record("trial", "files", "1", "--to", tmp_path / "file")

    assert (ended.code, ended.out) == (4, "")
    assert "cannot copy trial 1 to" in ended.err


def test_what_a_policy_or_a_rank_wrote_does_not_steer_the_terminal(tabular, cclsearch):
    study = tabular({0: Takes(step_time_s=0.5)}, seed=f"# {BACK}\ndef generate_config(w, e):\n 1/0")
    study.run()

    for command in ("show", "trial show 0"):
        assert "\x1b" not in cclsearch(*command.split(), "--store", study.root).out


def test_a_study_that_was_killed_is_interrupted_and_one_that_runs_is_not(tabular, cclsearch):
    study = tabular({0: Takes(step_time_s=0.5)})

    killed = cclsearch("show", "--store", study.root).out
    with study.store.lock(study.study_id):
        running = cclsearch("show", "--store", study.root).out

    assert "\nstatus: interrupted\nnext: cclsearch resume 20260101-000000-aaaa" in killed
    assert running.endswith("\nstatus: running\n")


@pytest.mark.parametrize(
    "command",
    ["list", "show", "best", "trial show 0", "trial show 2", "trial logs 0"],
)
def test_records_are_printed_as_json(on_record, command):
    ended = on_record(*command.split(), "--json")

    assert (ended.code, ended.err) == (0, "")
    json.loads(ended.out, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "command", ["size", f"check {VALID}", "sample -n 3", "sample --seed 1", "explain"]
)
def test_a_space_is_printed_as_json_and_as_text(cclsearch, command):
    words = command.split()

    assert cclsearch("space", *words).code == 0
    json.loads(cclsearch("space", *words, "--json").out, parse_constant=pytest.fail)


def test_the_facts_of_a_study_are_numbers_and_null_for_programs(on_record):
    (facts,) = json.loads(on_record("list", "--json").out)
    shown = json.loads(on_record("show", "--json").out)

    assert (facts["status"], facts["trials"], facts["best"]) == ("finished", 3, 0.25)
    assert shown["finding"]["winner"] == 1
    assert [trial["score"] for trial in shown["trials"]] == [0.5, 0.25, None]
    assert shown["study"]["objective"]["expression"] == "step_time"


def test_an_invalid_point_has_its_faults_as_json(cclsearch):
    ended = cclsearch("space", "check", "tp=3", "--json")

    assert ended.code == 2
    assert "knob tp is 3 (int), not one of [1, 2, 4]" in json.loads(ended.out)["faults"]


def test_a_sample_can_be_drawn_again(cclsearch):
    first, second = (cclsearch("space", "sample", "--seed", "7").out for _ in range(2))

    assert first == second
    assert len(set(first.splitlines())) == 5


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StudyError("x"), 2),
        (StoreBusy("x"), 4),
        (ProviderError("x"), 4),
        (Interrupted("x"), 75),
        (TraceError(Path("x"), "y"), 2),
        (CodecError("x"), 1),
    ],
)
def test_each_error_has_its_exit_code(error: CclsearchError, code):
    assert exit_code(error) == code


def test_output_in_another_script_is_no_error(finished, monkeypatch, tmp_path):
    target = (tmp_path / "out").open("w", encoding="ascii")
    monkeypatch.setattr(sys, "stdout", target)
    monkeypatch.setattr(sys, "argv", ["cclsearch", "show", "--store", str(finished.root)])

    with target, pytest.raises(SystemExit) as leaving:
        main()

    assert leaving.value.code == 0
