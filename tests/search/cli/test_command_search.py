"""Whole searches over a user's own script, started as a person starts them."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import cclsearch as api
from records.store.store import Store
from tests.support import service
from tests.support.records import contents
from tests.support.service import run_cclsearch

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "script"
CARDS = Path(__file__).parents[2] / "data" / "cards"
KEY = "sk-ant-0123456789-not-a-real-key"
UNVERIFIED = "tokens per step declared, not verified"
PROFILED = "timed in profiled steps, which the profiler slows down"
STUDY = service.STUDY.replace("trials = 3\npatience = 9", "trials = 5")
# More ranks and larger micro-batches are faster; one micro-batch is too large.
SCRIPT = f'env\ntest "$MICRO_BATCH" -lt 4 || exit 1\n{service.SCRIPT}'


@dataclass(frozen=True)
class Place:
    """A folder, and commands run in it by somebody who has a key."""

    path: Path

    def run(self, *arguments):
        return run_cclsearch(self.path, *arguments, ANTHROPIC_API_KEY=KEY)

    @property
    def store(self):
        return self.path / ".cclsearch"


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A folder in which a script was searched, and how that ended."""
    place = Place(tmp_path_factory.mktemp("searched"))
    (place.path / "study.toml").write_text(STUDY, encoding="utf-8")
    (place.path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    ended = place.run("run", "-c", "study.toml", "--strategy", "coordinate")
    assert (ended.returncode, ended.stderr) == (0, "")
    return place, ended.stdout


def test_a_search_over_a_script_finds_the_best_configuration(searched):
    place, told = searched

    assert "best: trial" in told
    assert "--dp=2 --micro-batch=2" in told[told.index("best: ") :].splitlines()[0]
    trials = api.trials(store=place.store)
    assert trials["config.dp"].tolist()[0] == 1
    best = trials.loc[trials["score"].idxmin()]
    assert (best["config.dp"], best["config.micro_batch"], best["score"]) == (2, 2, 0.03)


def test_a_configuration_whose_script_fails_has_no_score(searched):
    place, _ = searched
    trials = api.trials(store=place.store)

    failed = trials[trials["status"] == "failed"]

    assert set(failed["config.micro_batch"]) == {4}
    assert set(failed["failure_kind"]) == {"crash"}
    assert failed["score"].isna().all()


def test_every_output_with_a_score_says_what_is_not_verified(searched, cclsearch):
    place, told = searched
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


def test_the_key_is_nowhere_in_what_a_search_leaves(searched):
    place, told = searched
    logs = place.run("trial", "logs", "0").stdout

    assert "DATA_PARALLEL=1" in logs
    found = dict(contents(place.path))
    assert any(path.suffix == ".zst" for path in found)
    assert [path for path, content in found.items() if KEY.encode() in content] == []
    assert KEY not in told + logs


def test_the_winner_is_told_in_the_variables_of_the_script(searched, cclsearch):
    place, _ = searched

    env = cclsearch("best", "--format", "env", "--store", place.store).out

    assert env.splitlines() == ["DATA_PARALLEL=2", "MICRO_BATCH=2"]


def test_the_traces_of_a_trial_are_on_record(searched, cclsearch, tmp_path):
    place, _ = searched

    copied = cclsearch("trial", "files", "0", "--to", tmp_path / "out", "--store", place.store)

    assert copied.code == 0
    assert (tmp_path / "out" / "trace" / "rank0.json").is_file()
    launch = json.loads((tmp_path / "out" / "launch.json").read_text())
    assert launch["argv"] == ["bash", "~/run.sh"]
    assert launch["environment"]["DATA_PARALLEL"] == "1"


def test_a_study_is_not_resumed_with_another_script(searched):
    place, _ = searched
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
    old, new, message, cclsearch, tmp_path
):
    (tmp_path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "study.toml").write_text(STUDY.replace(old, new), encoding="utf-8")

    refused = cclsearch("run", "-c", tmp_path / "study.toml", "--strategy", "coordinate")

    assert refused.code == 2
    assert message in refused.err
    assert not list(Path.cwd().glob(".cclsearch/work/*/*"))


def test_a_finished_search_goes_on_with_more_trials_as_events(tmp_path):
    place = Place(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    place.run("run", "-c", "study.toml", "--strategy", "coordinate", "--trials", "2")

    ended = place.run("resume", "--trials", "1", "--json")

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


def test_the_example_of_the_documents_works_as_it_is_typed(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "script")
    place = Place(tmp_path / "script")
    file = place.path / "study.toml"
    shorter = "confirm_rounds = 0\nself_test_rounds = 0\ntimeout_s"
    file.write_text(file.read_text().replace("timeout_s", shorter).replace("[4, 2, 1]", "[2]"))

    ended = place.run(
        *("run", "-c", "study.toml", "--strategy", "coordinate", "--trials", "1", "--json")
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    trial = json.loads(place.run("trial", "show", "0", "--json").stdout)
    assert trial["config"] == {"activation_checkpointing": True, "dp": 2, "micro_batch": 2}
    assert trial["caveats"] == []
    assert 0 < trial["metrics"]["communication_fraction"] < 1
    assert len(trial["outcome"]["measurement"]["step_times_s"]) == 2
    finding = json.loads(ended.stdout.splitlines()[-1])
    assert (finding["event"], finding["winner"]) == ("finished", 0)


# Cards of CCL-Bench.


def test_a_card_is_searched_with_its_script(cclsearch, tmp_path):
    # As CCL-Search's scripts are: upper-case knobs, booleans in the tuning file's spelling.
    script = SCRIPT.replace("DATA_PARALLEL", "RANK_COUNT").replace(
        "MICRO_BATCH", "MICRO_BATCH_SIZE"
    )
    (tmp_path / "run.sh").write_text(f"env > $TRACE_DIR/env.log; {script}", encoding="utf-8")

    ended = cclsearch(
        *("run", "--card", CARDS / "training.yaml", "--tuning", CARDS / "tuning.yaml"),
        *("--card-bandwidths", "scale_out,scale_up", "--command", tmp_path / "run.sh"),
        *("--strategy", "coordinate", "--trials", "2", "--store", tmp_path / "store"),
    )

    assert (ended.code, ended.err) == (0, "")
    logs = cclsearch("trial", "logs", "0", "--store", tmp_path / "store").out
    for line in ("TP=1", "DP=1", "PP=1", "ACTIVATION_CHECKPOINTING=true", "GLOBAL_BATCH=32"):
        assert line in logs.splitlines()
    assert "rank_count" in cclsearch("show", "--json", "--store", tmp_path / "store").out


def test_a_card_of_tpus_is_searched_shown_and_exported(cclsearch, tmp_path):
    text = (CARDS / "training.yaml").read_text(encoding="utf-8").replace("type: GPU", "type: TPU")
    (tmp_path / "tpu.yaml").write_text(text, encoding="utf-8")
    script = SCRIPT.replace("DATA_PARALLEL", "RANK_COUNT").replace(
        "MICRO_BATCH", "MICRO_BATCH_SIZE"
    )
    (tmp_path / "run.sh").write_text(script, encoding="utf-8")
    said = "card: 2400 Gbit/s inside a node and 200 between nodes: the faster of two"

    ended = cclsearch(
        *("run", "--card", tmp_path / "tpu.yaml", "--tuning", CARDS / "tuning.yaml"),
        *("--command", tmp_path / "run.sh", "--strategy", "coordinate", "--trials", "1"),
    )

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
    ("arguments", "message"),
    [
        (("--command", "run.sh"), "need a card; add --card FILE"),
        (
            ("--card", CARDS / "inference.yaml", "--command", "run.sh"),
            "--command needs the script's knobs; add --tuning FILE",
        ),
        (
            (
                *("--card", CARDS / "inference.yaml", "--tuning", CARDS / "tuning.yaml"),
                *("--command", "run.sh"),
            ),
            "--command run.sh: file not found",
        ),
    ],
)
def test_a_script_needs_a_card_and_its_knobs(arguments, message, cclsearch):
    refused = cclsearch("run", *arguments)

    assert refused.code == 2
    assert message in refused.err


@pytest.mark.parametrize(
    ("spelling", "told"),
    [("[true, false]", "true"), ("[True, False]", "True"), ("[on, off]", "on")],
)
def test_a_card_s_booleans_are_told_as_its_tuning_file_spells_them(
    spelling, told, cclsearch, tmp_path
):
    tuning = (CARDS / "tuning.yaml").read_text().replace("[true, false]", spelling)
    (tmp_path / "tuning.yaml").write_text(tuning, encoding="utf-8")
    (tmp_path / "run.sh").write_text("env; exit 1", encoding="utf-8")

    cclsearch(
        *("run", "--card", CARDS / "inference.yaml", "--tuning", tmp_path / "tuning.yaml"),
        *("--command", tmp_path / "run.sh", "--strategy", "coordinate", "--trials", "1"),
    )

    assert f"ACTIVATION_CHECKPOINTING={told}" in cclsearch("trial", "logs", "0").out


def test_two_spellings_of_a_boolean_are_refused(cclsearch, tmp_path):
    tuning = (CARDS / "tuning.yaml").read_text().replace("[true, false]", "[True, true, false]")
    (tmp_path / "tuning.yaml").write_text(tuning, encoding="utf-8")
    (tmp_path / "run.sh").touch()

    refused = cclsearch(
        *("run", "--card", CARDS / "inference.yaml", "--tuning", tmp_path / "tuning.yaml"),
        *("--command", tmp_path / "run.sh"),
    )

    assert refused.code == 2
    assert "spells booleans as True, true, false; a script needs one spelling" in refused.err
