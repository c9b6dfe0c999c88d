"""Real searches of the smallest studies, started as a person or a program starts them."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import cclsearch as api
from records.store.store import Store
from records.study import Launch
from records.trial import Failed
from search.cli.run import SearchOptions
from tests.support import records as testing
from tests.support import service
from tests.support.records import contents
from tests.support.search import ScriptedMessagesServer, submission
from tests.support.service import CCLSEARCH, run_cclsearch

LIMIT_S = 120
EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "script"
CARDS = Path(__file__).parents[2] / "data" / "cards"
TINY = (Path(__file__).parents[2] / "data" / "tiny_study.toml").read_text(encoding="utf-8")
TRAINED = (
    TINY.replace("self_test_rounds = 1\nrace_rounds = 2", "self_test_rounds = 0\nrace_rounds = 0")
    .replace("confirm_rounds = 2", "confirm_rounds = 1")
    .replace("trials = 4\npatience = 4", "trials = 2\nlaunches = 4\nmax_failures = 1")
)
# The same without ranks, for torch takes longer to import than the rest: a launch that ends only
# when it is told to, and then fails.
HELD = f"""{TRAINED}
recipe = "command"

[command]
run = ["sh", "held.sh"]
rank_count = "1"

[space.micro_batch]
choices = [1, 2]
"""
HOLD = "while [ ! -e {folder}/released ]; do sleep 0.05; done; exit 1"
BROKEN = "def generate_config(workload, environment):\n    return 1 / 0\n"
STUDY = service.STUDY.replace("trials = 3\npatience = 9", "trials = 5")
# More ranks and larger micro-batches are faster; one micro-batch is too large.
SCRIPT = f'env\ntest "$MICRO_BATCH" -lt 4 || exit 1\n{service.SCRIPT}'
# As CCL-Search's scripts are: upper-case knobs, booleans in the tuning file's spelling.
CARD_SCRIPT = SCRIPT.replace("DATA_PARALLEL", "RANK_COUNT").replace(
    "MICRO_BATCH", "MICRO_BATCH_SIZE"
)


class Folder:
    """A folder with study files, and commands run in it."""

    def __init__(self, path, **environment):
        self.path, self.environment = path, environment
        for name, text in {
            "trained.toml": TRAINED,
            "held.toml": HELD,
            "held.sh": HOLD.format(folder=path),
            "broken.py": BROKEN,
            "study.toml": STUDY,
            "run.sh": SCRIPT,
        }.items():
            (path / name).write_text(text, encoding="utf-8")
        Store(self.store).close()  # made here, where it takes no time

    @property
    def store(self):
        return self.path / ".cclsearch"

    def run(self, *arguments):
        return run_cclsearch(self.path, *arguments, **self.environment)

    def start(self, *arguments, stdout=subprocess.PIPE):
        return subprocess.Popen(
            [CCLSEARCH, *arguments],
            cwd=self.path,
            env={"PATH": os.defpath, "TERM": "xterm", **self.environment},
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def here(tmp_path):
    return Folder(tmp_path)


def until(process, words):
    """Read a search's output up to the line with these words."""
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"{words!r} never came: {process.stderr.read()}")


@pytest.mark.slow
def test_a_trial_of_real_ranks_trains_the_same_after_another_and_by_its_script_alone(
    here, cclsearch, tmp_path
):
    searched = here.run("run", "-c", "trained.toml")
    again = tmp_path / "again.sh"
    written = cclsearch("trial", "script", "0", "-o", again, "--store", here.store)
    assert (searched.returncode, searched.stderr, written.code, written.err) == (0, "", 0, "")
    with closing(Store(here.store)) as store:
        (study,) = store.studies()
        losses = store.history(study.id).trials[0].outcome.measurement.losses
        repeats = [
            one.outcome.measurement.losses for one in store.repeats(study.id) if one.ordinal == 0
        ]

    environment = {"PATH": f"{Path(CCLSEARCH).parent}:{os.defpath}"}
    ended = subprocess.run(
        ["sh", "again.sh"], cwd=tmp_path, env=environment, timeout=LIMIT_S, check=False
    )

    assert ended.returncode == 0
    steps = json.loads((tmp_path / "trial-0" / "rank1.steps.json").read_text())
    assert losses
    assert repeats
    assert {each[: len(losses)] for each in (tuple(steps["losses"]), *repeats)} == {losses}


def test_a_search_of_nothing_that_can_be_measured_ends_with_3_and_loads_only_what_it_needs(here):
    ended = here.run("run", "-c", "held.toml", "--seed-policy", "broken.py")

    assert (ended.returncode, ended.stderr) == (3, "")
    assert "strategy offline: no ANTHROPIC_API_KEY, so no model is asked" in ended.stdout
    assert "best: none, because no configuration could be measured" in ended.stdout
    assert "failed: 1 policy_error; first in trial 0: line 2: " in ended.stdout
    again = run_cclsearch(here.path, "resume", "--json", PYTHONPROFILEIMPORTTIME="1")
    finished = json.loads(again.stdout.splitlines()[-1])
    assert (again.returncode, finished["event"], finished["winner"]) == (3, "finished", None)
    loaded = {line.rpartition("|")[2].strip() for line in again.stderr.splitlines()}
    assert "search.compose" in loaded
    assert not loaded & {"anthropic", "fastapi", "pandas", "scipy.linalg", "sqlite_utils", "torch"}


def test_a_memory_budget_that_surely_holds_nothing_launches_nothing(here):
    large = TRAINED.replace("hidden_size = 32", "hidden_size = 512")
    large = large.replace("ffn_size = 64", "ffn_size = 4096")
    large = large.replace("memory_budget_bytes = 536870912", "memory_budget_bytes = 33554432")
    (here.path / "study.toml").write_text(large, encoding="utf-8")

    ended = here.run("run", "-c", "study.toml")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no configuration satisfies the constraints; relax one: breaks memory: " in ended.stderr
    assert "memory_bytes=32 MiB" in ended.stderr


STOP_AND_TWICE = (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT)


@pytest.mark.parametrize(
    ("numbers", "code"), [([signal.SIGTERM], 75), ([signal.SIGHUP], 75), (STOP_AND_TWICE, 130)]
)
def test_an_interruption_ends_with_75_and_a_second_with_130_and_says_how_to_go_on(
    here, numbers, code
):
    with here.start("run", "-c", "held.toml", "--json") as process:
        until(process, '"config_decided"')
        for number in numbers:
            process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)

    assert process.returncode == code
    assert "next: cclsearch show 20" in err
    assert "next: cclsearch resume 20" in err
    assert "Traceback" not in err
    if code == 75:
        assert err.startswith("interrupted; every finished trial is recorded\n")
        assert "status: interrupted" in here.run("show").stdout


def test_a_job_that_was_preempted_and_requeued_goes_on_with_its_study(here):
    here.environment = {"SLURM_JOB_ID": "7"}
    with here.start("run", "-c", "held.toml", "--json") as process:
        until(process, '"config_decided"')
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    (here.path / "released").touch()

    here.environment = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
    again = here.run("run", "-c", "held.toml")

    with closing(Store(here.store)) as store:
        [study] = store.studies()
        assert len(store.runs(study.id)) == 2
    words = f"slurm 7 was requeued: the search of study {study.id} goes on"
    assert words in again.stderr
    assert again.returncode == 3  # nothing could be measured


def test_a_reader_that_leaves_ends_the_search_with_75(here):
    with here.start("run", "-c", "held.toml") as process:
        process.stdout.readline()
        process.stdout.close()
        (here.path / "released").touch()
        err = process.stderr.read()

    assert process.returncode == 75
    assert "next: cclsearch resume 20" in err
    assert "BrokenPipe" not in err


def test_a_study_is_searched_by_one_process_at_a_time(here):
    here.run("run", "-c", "held.toml", "--seed-policy", "broken.py")
    with closing(Store(here.store)) as store:
        study = store.find("")
        with store.lock(study.id):
            ended = here.run("resume", "--trials", "5")

        assert ended.returncode == 4
        assert f"error: study {study.id} is being run by process {os.getpid()}" in ended.stderr
        assert store.find("").study.budget == study.study.budget


def test_a_terminal_gets_rows_and_a_report_without_a_trace_of_what_was_under_way(here):
    ours, theirs = pty.openpty()
    command = ["run", "-c", "held.toml", "--seed-policy", "broken.py"]
    with here.start(*command, stdout=theirs) as process:
        os.close(theirs)
        shown = read_all(ours)

    assert process.wait() == 3
    assert "policy_error" in shown
    assert shown.index("step: █ compute") < shown.index("policy_error") < shown.index("stopped")
    assert "proposing" not in shown[shown.index("stopped") :]


def read_all(terminal):
    """What was written to a terminal until its other end closed."""
    parts = []
    with os.fdopen(terminal, "rb") as shown:
        try:
            while part := shown.read(1):
                parts.append(part)
        except OSError:  # how Linux says that the other end of a terminal has gone
            pass
    return b"".join(parts).decode(errors="replace")


# Searches over a user's own script.

KEY = "sk-ant-0123456789-not-a-real-key"
UNVERIFIED = "tokens per step declared, not verified"
PROFILED = "timed in profiled steps, which the profiler slows down"


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    """A folder in which a script was searched, and what that printed."""
    place = Folder(tmp_path_factory.mktemp("scripted"), ANTHROPIC_API_KEY=KEY)
    ended = place.run("run", "-c", "study.toml", "--strategy", "coordinate")
    assert (ended.returncode, ended.stderr) == (0, "")
    return place, ended.stdout


def test_a_search_prints_its_trials_and_its_finding_on_standard_output(scripted):
    _, told = scripted

    lines = told.splitlines()
    assert lines[0].endswith(": mine, objective step_time")
    assert [line.split()[:2] for line in lines[2:7]] == [["trial", str(n)] for n in range(5)]
    assert lines[1].startswith("strategy coordinate")
    assert " repeated to confirm, round 1: step_time " in lines[7]
    report = told[told.index("stopped: ") :]
    named = [line.partition(":")[0] for line in report.splitlines()]
    assert named[:2] == ["stopped", "trials"]
    assert {"best", "step_time", "against the seed", "record"} < set(named)
    assert named[-2:] == ["next", "next"]


def test_a_finished_search_is_not_repeated_but_told_again(scripted):
    place, told = scripted
    report = told[told.index("stopped: ") :]

    again = place.run("resume")

    assert (again.returncode, again.stderr) == (
        0,
        "nothing left to launch: all 5 trials are used\n",
    )
    assert again.stdout.endswith(report)
    assert place.run("show").stdout.endswith(report)


def test_a_search_over_a_script_finds_the_best_configuration(scripted, cclsearch):
    place, told = scripted

    trials = api.trials(store=place.store)
    failed = trials[trials["status"] == "failed"]
    best = trials.loc[trials["score"].idxmin()]
    env = cclsearch("best", "--format", "env", "--store", place.store).out

    assert "--dp=2 --micro-batch=2" in told[told.index("best: trial") :].splitlines()[0]
    assert trials["config.dp"].tolist()[0] == 1
    assert (best["config.dp"], best["config.micro_batch"], best["score"]) == (2, 2, 0.03)
    assert env.splitlines() == ["DATA_PARALLEL=2", "MICRO_BATCH=2"]
    assert set(failed["config.micro_batch"]) == {4}
    assert set(failed["failure_kind"]) == {"crash"}
    assert failed["score"].isna().all()


@pytest.mark.slow
def test_a_second_study_begins_with_the_best_of_the_first_unless_asked_not_to(here):
    search = ("run", "-c", "study.toml", "--strategy", "offline", "--trials")
    decides = STUDY.replace("confirm_rounds = 1\nmax_confirm_rounds = 1", "confirm_rounds = 3")
    (here.path / "study.toml").write_text(decides, encoding="utf-8")

    here.run(*search, "5")
    second = here.run(*search, "2")
    unaided = here.run(*search, "2", "--no-transfer")

    with closing(Store(here.store)) as store:
        rows = sorted(store.studies(3), key=lambda row: row.created_at)
        first = rows[0].id
        best = json.loads(rows[0].summary)["winner"]
        tried = [store.trial(row.id, 1) for row in rows]
        known = store.trial(first, best).config
    assert f"first candidates are the best of {first}, of like work" in second.stderr
    assert tried[1].config == known
    assert tried[1].policy.rationale.startswith(f"the best of study {first} for the same work")
    assert unaided.stderr == ""
    assert "the best of study" not in tried[2].policy.rationale


def test_every_output_with_a_score_says_what_is_not_verified(scripted, cclsearch):
    place, told = scripted
    study, store = Store(place.store).studies()[0].id, ("--store", place.store)

    lines = [
        line for line in told.splitlines() if " s" in line and line.startswith(("trial", "re-"))
    ]
    measured = [line for line in lines if "FAILED" not in line]
    assert measured
    assert all(UNVERIFIED in line and PROFILED in line for line in measured)
    assert f"caveat: {UNVERIFIED}" in told
    assert f"caveat: {PROFILED}" in cclsearch("show", study, *store).out
    assert UNVERIFIED in cclsearch("trial", "show", study, "0", *store).out
    assert UNVERIFIED in cclsearch("list", *store).out
    shown = json.loads(cclsearch("trial", "show", study, "0", "--json", *store).out)
    assert shown["caveats"] == [UNVERIFIED, PROFILED]
    assert shown["outcome"]["measurement"]["profiled"] is True
    assert api.trials(store=place.store)["caveats"][0] == f"{UNVERIFIED}; {PROFILED}"


def test_the_traces_of_a_trial_are_on_record_and_the_key_is_not(scripted, cclsearch, tmp_path):
    place, told = scripted
    logs = place.run("trial", "logs", "0").stdout

    copied = cclsearch("trial", "files", "0", "--to", tmp_path / "out", "--store", place.store)

    assert copied.code == 0
    assert (tmp_path / "out" / "trace" / "rank0.json").is_file()
    launch = json.loads((tmp_path / "out" / "launch.json").read_text())
    assert launch["argv"] == ["bash", "~/run.sh"]
    assert launch["environment"]["DATA_PARALLEL"] == "1"
    assert "DATA_PARALLEL=1" in logs
    found = dict(contents(place.path))
    assert any(path.suffix == ".zst" for path in found)
    assert [path for path, content in found.items() if KEY.encode() in content] == []
    assert KEY not in told + logs


def test_a_study_is_not_resumed_with_another_script(scripted):
    place, _ = scripted
    script = place.path / "run.sh"
    try:
        script.write_text(SCRIPT + "\n# faster\n", encoding="utf-8")
        refused = place.run("resume")
    finally:
        script.write_text(SCRIPT, encoding="utf-8")

    assert refused.returncode == 2
    assert "is not what it was when the study began" in refused.stderr
    assert "start a new study" in refused.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[space.micro_batch]", "[space.path]", "[space] 'path': the variable PATH means"),
        ('"run.sh"]', '"walk.sh"]', "[command] run: there is no file "),
        ('recipe = "command"', 'recipe = "builtin"', '[command] needs recipe = "command"'),
        ("run =", "runs =", "[command] unknown key 'runs'; did you mean 'run'?"),
        ("global_batch = 8\n", "", "[workload] needs global_batch"),
        ("export =", "booleans = ['a', 'a']\nexport =", "[command] booleans ['a', 'a'] must be"),
        ("export =", "booleans = ['a']\nexport =", "[command.booleans]"),
        ("export =", "trace_files = ['']\nexport =", "[command] trace_files holds an empty"),
        ('run = ["bash", "run.sh"]', "run = []", "[command] run names no program"),
        ('run = ["bash", "run.sh"]', 'run = "bash run.sh"', "[command] run: Input should be a"),
    ],
)
def test_a_study_that_cannot_run_is_refused_before_anything_starts(
    old, new, message, cclsearch, here
):
    (here.path / "study.toml").write_text(STUDY.replace(old, new), encoding="utf-8")

    refused = cclsearch("run", "-c", here.path / "study.toml", "--strategy", "coordinate")

    assert refused.code == 2
    assert message in refused.err
    assert not list(Path.cwd().glob(".cclsearch/work/*/*"))


@pytest.mark.parametrize("asked", [True, False, None])
def test_jobs_are_isolated_as_asked_for_else_as_the_study_has_it(asked):
    for own in (True, False):
        of_study = replace(testing.study(), launch=Launch(isolate=own))

        isolated = SearchOptions(isolate=asked).of(of_study).launch.isolate

        assert isolated is (own if asked is None else asked)


def test_a_finished_search_goes_on_with_more_trials_as_events(here):
    here.run("run", "-c", "study.toml", "--strategy", "coordinate", "--trials", "2")

    ended = here.run("resume", "--trials", "1", "--json")

    assert (ended.returncode, ended.stderr) == (0, "")
    told = [json.loads(line, parse_constant=pytest.fail) for line in ended.stdout.splitlines()]
    names = [event["event"] for event in told]
    assert names[:4] == ["study_started", "trial_started", "config_decided", "trial_finished"]
    assert set(names[4:-1]) == {"repeat_finished"}
    assert names[-1] == "finished"
    assert told[0]["trials"] == 3
    assert [event["ordinal"] for event in told if event["event"] == "trial_finished"] == [2]
    assert told[-1]["stop_reason"] == "all 3 trials are used"
    assert told[-1]["winner"] in {0, 1, 2}


@pytest.mark.slow
def test_the_example_of_the_documents_works_as_it_is_typed(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "study.toml"
    shorter = "confirm_rounds = 0\nself_test_rounds = 0\ntimeout_s"
    file.write_text(file.read_text().replace("timeout_s", shorter).replace("[4, 2, 1]", "[2]"))
    words = "run -c study.toml --strategy coordinate --trials 1 --json"

    ended = run_cclsearch(tmp_path, *words.split())

    assert (ended.returncode, ended.stderr) == (0, "")
    trial = json.loads(run_cclsearch(tmp_path, "trial", "show", "0", "--json").stdout)
    assert trial["config"] == {"activation_checkpointing": True, "dp": 2, "micro_batch": 2}
    assert trial["caveats"] == []
    assert 0 < trial["metrics"]["communication_fraction"] < 1
    assert len(trial["outcome"]["measurement"]["step_times_s"]) == 2
    finding = json.loads(ended.stdout.splitlines()[-1])
    assert (finding["event"], finding["winner"]) == ("finished", 0)


# Cards of CCL-Bench.


@pytest.fixture
def searched_card(cclsearch, tmp_path):
    """Searches a script with a card and a tuning file; gives how that ended."""

    def run(card, *flags, tuning=CARDS / "tuning.yaml", script=CARD_SCRIPT):
        (tmp_path / "card.sh").write_text(script, encoding="utf-8")
        words = ("--tuning", tuning, "--command", tmp_path / "card.sh", "--trials", "1")
        return cclsearch("run", "--card", card, *words, "--strategy", "coordinate", *flags)

    return run


def test_a_card_of_tpus_is_searched_shown_and_exported(searched_card, cclsearch, tmp_path):
    text = (CARDS / "training.yaml").read_text(encoding="utf-8").replace("type: GPU", "type: TPU")
    (tmp_path / "tpu.yaml").write_text(text, encoding="utf-8")
    said = "card: 2400 Gbit/s inside a node and 200 between nodes: the faster of two"

    ended = searched_card(tmp_path / "tpu.yaml")

    assert (ended.code, said in ended.err) == (0, True)
    shown = json.loads(cclsearch("show", "--json").out)
    assert shown["study"]["environment"]["device"] == "tpu"
    assert said.removeprefix("card: ") in shown["study"]["inferences"][0]
    assert "2400 Gbit/s inside a node" in cclsearch("show").out
    exported = cclsearch("export", "--format", "entry", "--incomplete", "-o", tmp_path / "entry")
    assert exported.code in {0, 7}
    card = (tmp_path / "entry" / "workload_card.yaml").read_text(encoding="utf-8")
    assert "type: TPU" in card


@pytest.mark.parametrize(
    ("spelling", "told"),
    [("[true, false]", "true"), ("[True, False]", "True"), ("[on, off]", "on")],
)
def test_a_script_reads_a_card_with_the_booleans_that_its_tuning_file_spells(
    spelling, told, searched_card, cclsearch, tmp_path
):
    tuning = tmp_path / "tuning.yaml"
    tuning.write_text((CARDS / "tuning.yaml").read_text().replace("[true, false]", spelling))
    bandwidths = ("--card-bandwidths", "scale_out,scale_up")

    searched_card(CARDS / "training.yaml", *bandwidths, tuning=tuning, script="env; exit 1")

    logs = cclsearch("trial", "logs", "0").out.splitlines()
    variables = {f"ACTIVATION_CHECKPOINTING={told}", "TP=1", "DP=1", "PP=1", "GLOBAL_BATCH=32"}
    assert variables <= set(logs)


def test_two_spellings_of_a_boolean_are_refused(searched_card, tmp_path):
    tuning = tmp_path / "tuning.yaml"
    spelled = (CARDS / "tuning.yaml").read_text().replace("[true, false]", "[True, true, false]")
    tuning.write_text(spelled, encoding="utf-8")

    refused = searched_card(CARDS / "inference.yaml", tuning=tuning)

    assert refused.code == 2
    assert "spells booleans as True, true, false; a script needs one spelling" in refused.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "need a card; add --card FILE"),
        (f"--card {CARDS}/inference.yaml", "--command needs the script's knobs; add --tuning FILE"),
        (
            f"--card {CARDS}/inference.yaml --tuning {CARDS}/tuning.yaml",
            "--command run.sh: file not found",
        ),
    ],
)
def test_a_script_needs_a_card_and_its_knobs(arguments, message, cclsearch):
    refused = cclsearch("run", *arguments.split(), "--command", "run.sh")

    assert refused.code == 2
    assert message in refused.err


# A search by somebody with secrets, over a script and a model that repeat them.

PASSWORD = 'pa"ss\\word/4711'
CERTIFICATE = "line one of a secret\nline two of a secret"
STRANGER = f"hf_{'Ab3' * 12}"
"""A token that is in nobody's environment."""
SECRET_STUDY = (
    re.sub(
        r"(?s)\[space.dp\].*\[measure\]", "[space.size]\nchoices = [1, 2, 3, 4]\n[measure]", STUDY
    )
    .replace('"run.sh"]', '"tools/run.sh"]\nrank_count = "1"')
    .replace('export = { dp = "DATA_PARALLEL" }', 'environment = { DATA = "HOME/data:/usr/share" }')
    .replace("confirm_top = 1\nconfirm_rounds = 1", "confirm_top = 0\nconfirm_rounds = 0")
    .replace("max_confirm_rounds = 1", "profiled_steps = 0")
    .replace("trials = 5", "trials = 2")
) + '[[constraint]]\nname = "fits"\nexpression = "size < 4"\n'
# It prints all that it can see, the environment of the search above it too, and then fails.
SECRET_SCRIPT = r"""
set -e
env; cat "$HOME/password" "$HOME/certificate" "$HOME/token"; ls -d "$DATA" || true
process=$$
while [ "$process" -gt 1 ]; do
  tr '\0' '\n' < "/proc/$process/environ"
  if grep -qz ANTHROPIC_API_KEY "/proc/$process/environ"; then break; fi
  process=$(awk '$1 == "PPid:" { print $2 }' "/proc/$process/status")
done
cp "$HOME/as.json" "$TRACE_DIR/seen.jsonl"
test "$SIZE" = 1 || { echo "ValueError: no $(cat "$HOME/token") in $HOME/x"; exit 1; }
printf '{"step_times_s": [[0.1, 0.1, 0.1, 0.1, 0.1]], "losses": [1.0]}' > "$TRACE_DIR/steps.json"
"""
POLICY = "def generate_config(workload, environment):\n    return {{'size': {}}}\n"
BREAKS_A_CONSTRAINT = POLICY.format(4)
RAISES = POLICY.format("environment['gpu_count']")
RUNS = f"# {KEY} {PASSWORD}\n{POLICY.format(2)}"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The home of somebody who searched there with secrets."""
    path = tmp_path_factory.mktemp("people") / "alice"
    (path / "tools").mkdir(parents=True)
    for name, text in {
        "secret.toml": SECRET_STUDY.replace("HOME", str(path)),
        "tools/run.sh": SECRET_SCRIPT,
        "password": f"{PASSWORD}\n",
        "certificate": f"{CERTIFICATE}\n",
        "token": STRANGER,
        "as.json": json.dumps({"password": PASSWORD, "path": f"{path}/x", "token": STRANGER}),
    }.items():
        (path / name).write_text(text, encoding="utf-8")
    secrets = {"ANTHROPIC_API_KEY": KEY, "DB_PASSWORD": PASSWORD, "MY_SECRET": CERTIFICATE}
    submitted = (BREAKS_A_CONSTRAINT, RAISES, RUNS)
    with ScriptedMessagesServer(
        [submission(source, rationale=f"the key is {KEY}") for source in submitted]
    ) as model:
        place = Folder(path, ANTHROPIC_BASE_URL=model.url, **secrets)
        ended = place.run("run", "-c", "secret.toml")
        assert (ended.returncode, ended.stderr) == (0, "")
        place.told, place.requests = ended.stdout, list(model.requests)
        yield place


def test_the_model_is_told_which_constraint_or_which_line_is_wrong(home):
    first, second, third = (request.body["messages"] for request in home.requests)
    invalid, raised = (json.dumps(messages[-1]) for messages in (second, third))

    assert [len(messages) for messages in (first, second, third)] == [1, 3, 5]
    assert "fits: size < 4" in invalid
    assert "size=4" in invalid
    assert "the policy failed: line 2: KeyError: 'gpu_count'" in raised


def test_the_key_is_sent_to_the_provider_only_and_in_no_output(home):
    assert all(KEY in json.dumps(request.headers) for request in home.requests)
    assert all(KEY not in json.dumps(request.body) for request in home.requests)
    assert KEY not in home.told


def test_no_secret_and_no_path_of_the_home_is_in_any_file_of_the_store(home):
    escaped = json.dumps(PASSWORD)[1:-1]
    twice = json.dumps(escaped)[1:-1]
    secrets = (KEY, PASSWORD, escaped, twice, *CERTIFICATE.splitlines(), STRANGER, str(home.path))
    kept = [(path.name, text.decode(errors="replace")) for path, text in contents(home.store)]

    assert [(name, each) for name, text in kept for each in secrets if each in text] == []
    seen = [text for _, text in kept if "ANTHROPIC_API_KEY=***" in text]
    assert seen
    assert all("DB_PASSWORD=***" in text and "DATA=~/data:/usr/share" in text for text in seen)


def test_the_study_still_runs_its_script_from_wherever_the_home_is(home):
    with closing(Store(home.store)) as store:
        row = store.studies()[0]
        first, second = store.history(row.id).trials

    assert row.study.command.run == ("bash", "~/tools/run.sh")
    assert list(row.study.command.file_digests) == ["~/tools/run.sh"]
    assert first.outcome.launched.argv == ("bash", "~/tools/run.sh")
    assert first.score.value == 0.1
    assert isinstance(second.outcome, Failed)
    assert second.outcome.message == "the command ended with status 1: ValueError: no *** in ~/x"
    assert second.outcome.launched.ranks[0].first_error == "ValueError: no *** in ~/x"


def test_what_the_model_said_is_kept_but_for_secrets_with_what_it_used(home):
    with closing(Store(home.store)) as store:
        row = store.studies()[0]
        first, second = store.history(row.id).trials
        exchange = store.exchange(second.exchange)
        (use,) = store.model_uses(row.id)
    replies = json.loads(exchange.reply)
    (line,) = [line for line in home.told.splitlines() if line.startswith("model: ")]

    assert (first.policy.author, second.policy.author) == ("seed", "llm")
    assert second.policy.source == RUNS.replace(KEY, "[key]").replace(PASSWORD, "***")
    assert "the key is [key]" in second.policy.rationale
    assert "# [key] ***" in exchange.reply
    assert [reply["request"] for reply in replies] == [0, 1, 2]
    assert len(json.loads(exchange.request)) == exchange.request_count == 3
    assert all("submit_policy" in reply["body"] for reply in replies)
    assert use.usage == exchange.usage
    assert min(use.usage.input_tokens, use.usage.output_tokens) > 0
    assert line.startswith("model: claude-opus-5-5: policies in 1 of 1 turn, 3 requests; ")
    assert line.endswith(" USD")


def test_a_search_with_secrets_is_replayed_exactly(home):
    ended = home.run("replay")

    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_script_of_a_trial_runs_it_again(home, tmp_path):
    written = home.run("trial", "script", "0", "-o", str(tmp_path / "again.sh"))
    assert (written.returncode, written.stderr) == (0, "")

    ended = subprocess.run(
        ["sh", "again.sh", "here"],
        cwd=tmp_path,
        env={"PATH": os.defpath, "HOME": str(home.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0
    assert f"DATA={home.path}/data:/usr/share" in ended.stdout
    assert (tmp_path / "here" / "trace" / "steps.json").is_file()
