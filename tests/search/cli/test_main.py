"""The command line as a whole: its commands, what they load, misuse, and exit codes."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from records.errors import CclsearchError, CodecError, StoreBusy, StudyError, TraceError
from records.store.store import Store
from records.trial import Repeat
from search.cli import main as cli
from search.cli.main import exit_code, loaded, main
from search.settings import Interrupted, ProviderError
from tests.support import records as testing
from tests.support import service

STUDY = "20260101-000000-aaaa"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_the_help_of_each(name):
    _, line = cli.COMMANDS[name]

    assert loaded(name).help.partition("\n")[0] == line


ALL_IN_ONE = """
import sys
sys.modules["torch"] = None  # importing it raises
from search.cli.main import main
for line in sys.argv[1:]:
    sys.argv = ["cclsearch", *line.split()]
    try:
        main()
    except SystemExit as leaving:
        print(f"== {leaving.code}")
print(*(name for name, loaded in sys.modules.items() if loaded), file=sys.stderr)
"""


def loaded_by(*lines):
    """What commands print in a process of their own, if they end with 0, and what they load."""
    told = subprocess.run(
        [sys.executable, "-c", ALL_IN_ONE, *lines], capture_output=True, text=True, check=True
    )
    *printed, end = told.stdout.split("== 0\n")
    assert (len(printed), end) == (len(lines), ""), told.stdout
    return printed, set(told.stderr.splitlines()[-1].split())


HEAVY = {"torch", "pandas", "scipy", "anthropic", "sqlite_utils"}
MEASURING = {
    *("sklearn", "fastapi", "yaml", "policies.sandbox", "search.cli.run"),
    *("evaluator.recipes.builtin", "evaluator.traces.readers.formats", "search.study.cards"),
}
NVBENCH = {"evaluator.timing.nvbench.read", "evaluator.timing.nvbench.compare"}


def test_the_list_of_commands_is_told_without_loading_any():
    (printed,), modules = loaded_by("--help")

    assert not modules & {module for module, _ in cli.COMMANDS.values()}
    assert not modules & {"records.store", "records.study", "records.scrub", "pydantic", "numpy"}
    assert all(f"\n  {name} " in printed for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("lines", "heavy"),
    [
        ("run -h, resume -h, list -h, trial show -h, space check -h", HEAVY | {"numpy"}),
        ("metrics compute -h, trace breakdown -h", HEAVY),  # whose modules compute with arrays
        (
            f"list, show, best, trial show {STUDY} 0, list --json",
            HEAVY | MEASURING | {"numpy", "evaluator.traces.analysis.collectives"},
        ),
        ("leaderboard", HEAVY | MEASURING),  # it loads every metric, for its unit
        (f"compare trial:{STUDY}:0 trial:{STUDY}:1", NVBENCH),
        (
            "metrics list, policy check sharded, space size",
            HEAVY | {"evaluator.traces.readers.formats"},
        ),
    ],
)
def test_help_and_reading_load_nothing_that_only_measuring_needs(
    lines, heavy, tmp_path, monkeypatch
):
    monkeypatch.setenv("CCLSEARCH_STORE", str(tmp_path))
    with closing(Store(tmp_path)) as records:
        trials = testing.history(0.25, 0.5).trials
        repeats = [
            Repeat(series=2, round=number, ordinal=each.ordinal, outcome=each.outcome)
            for number in range(4)
            for each in trials
        ]
        records.add_study(STUDY, testing.study(), "test", trials, repeats)

    _, modules = loaded_by(*lines.split(", "))

    assert modules & heavy == set()


def test_a_script_is_searched_and_its_traces_are_read_where_torch_cannot_be_imported(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CCLSEARCH_STORE", str(tmp_path / "store"))
    Path("study.toml").write_text(service.STUDY, encoding="utf-8")
    Path("run.sh").write_text(service.SCRIPT, encoding="utf-8")
    lines = ("try -c study.toml", "run -c study.toml --trials 1", "metrics compute trial:0", "show")

    *_, computed, shown = loaded_by(*lines)[0]

    assert "step_time" in computed
    assert "best" in shown


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
        ("trial show", "TRIAL"),
        ("trial show abc", "give its number, as in `cclsearch trial show 3`"),
        ("trial show a b 3", "is not a trial"),
        ("trial show -1", "No such option"),
        ("metrics show mfuu", "did you mean 'mfu'?"),
        ("metrics compute nowhere mfuu", "did you mean 'mfu'?"),
        ("metrics compute nowhere", "error: nowhere"),
        ("metrics compute nowhere --card missing.yaml", "error: missing.yaml"),
        ("metrics compute nowhere --metrics-file missing.py", "error: missing.py"),
        ("metrics compute", "TRACE"),
        ("space check tp", "error: 'tp' is not KNOB=VALUE"),
        ("space check tp=3", "knob tp is 3"),
        ("space estimate tp", "'tp' is not KNOB=VALUE"),
        ("space estimate tp=3", "knob tp is 3"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_to_do(cclsearch, arguments, words):
    ended = cclsearch(*arguments.split())

    assert (ended.code, ended.out) == (2, "")
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
    ("command", "file", "words"),
    [
        ("list", "cclsearch.db", "cannot open the store"),
        ("show", "cclsearch.db", "cannot open the store"),
        ("resume", "cclsearch.db", "cannot open the store"),
        ("run", "", "give another with --store"),
    ],
)
def test_a_store_that_is_none_and_cannot_be_made_ends_with_4(
    cclsearch, tmp_path, command, file, words
):
    store = tmp_path / "store"
    (store / file).parent.mkdir(exist_ok=True)
    (store / file).write_text("no database", encoding="utf-8")

    ended = cclsearch(command, "--store", store)

    assert (ended.code, ended.out) == (4, "")
    assert words in ended.err


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


def test_output_in_another_script_is_no_error(monkeypatch, tmp_path):
    target = (tmp_path / "out").open("w", encoding="ascii")
    monkeypatch.setattr(sys, "stdout", target)
    monkeypatch.setattr(sys, "argv", ["cclsearch", "metrics", "list"])

    with target, pytest.raises(SystemExit) as leaving:
        main()

    assert leaving.value.code == 0
