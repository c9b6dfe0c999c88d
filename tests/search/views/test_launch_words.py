"""Launches and machines on record as people read them, and the script that starts a job again."""

import json
import subprocess
from contextlib import closing
from dataclasses import replace

import pytest

from records.errors import StudyError
from records.machine import Checkout, Gpu, LaunchRecord, Machine, RankEnd
from records.store.store import Store
from records.trial import ContextOutcome
from search.transfer.script import launch_script
from search.views.machine import differences, launch_facts, machine_line
from tests.support import records as testing

STUDY_ID = "20260101-000000-aaaa"
H100 = Gpu(name="NVIDIA H100", memory_bytes=80 << 30, driver="570.86", power_limit_w=700)
MACHINE = Machine(
    host="node7",
    system="Debian 12",
    kernel="6.1",
    libc="glibc 2.36",
    python="CPython 3.11.7",
    version="0.1.0",
    cclsearch=Checkout(commit="c" * 40, is_changed=True, changes="d" * 64),
    script=None,
    cpu_model="Fast CPU",
    core_count=8,
    usable_core_count=4,
    numa_node_count=1,
    memory_bytes=64 << 30,
    governor=None,
    gpus=(H100, H100),
    software={"torch": "2.13.0"},
    packages={"torch": "2.13.0", "left-pad": "1.0"},
    environment={"NCCL_DEBUG": "INFO", "LD_LIBRARY_PATH": "~/lib"},
)
JOB = """printf '%s|' "$DP" "$NCCL_DEBUG" "$TRACE_DIR" "$1" "$(cat job.json)" > told"""
LAUNCHED = LaunchRecord(
    argv=("sh", "-c", JOB, "sh", "~/it's here"),
    environment={"DP": "two words; $(touch evil)"},
    files=("job.json",),
    folders={"TRACE_DIR": "trace"},
    job_id="slurm 7",
    hosts=("node7",),
    cores=(0, 1),
    reason="rank_failed",
    wall_s=12.5,
    ranks=(
        RankEnd(rank=None, status=1, signal=None),
        RankEnd(rank=0, status=0, signal=None),
        RankEnd(rank=1, status=0, signal=None),
        RankEnd(rank=2, status=None, signal=9, first_error="ValueError: \x1b[31mbad"),
    ),
)
FILE = "{\nEND_OF_FILE\n$(touch evil) `touch evil` ~ 'x'\n}"


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "store")) as opened:
        opened.create(STUDY_ID, testing.study(), "test")
        yield opened


@pytest.fixture
def script(store):
    """Gives the script of a trial that was launched like this, and left these files."""

    def make(launched=LAUNCHED, context=None, contexts=(), **files):
        kept = [
            store.artifacts.keep_text(text, name.replace("__", "/").replace("_json", ".json"))
            for name, text in (files or {"job_json": FILE}).items()
        ]
        if launched is not None:
            launched = replace(launched, machine=store.keep_machine(MACHINE))
        outcome = replace(testing.measured(), artifacts=tuple(kept), launched=launched)
        others = (ContextOutcome(name=name, outcome=outcome) for name in contexts)
        trial = testing.trial(0, replace(outcome, contexts=tuple(others)), {"tp": 2})
        return launch_script(trial, store.find(STUDY_ID), store, context)

    return make


def test_a_script_is_suggested_under_its_quoted_name(cclsearch, store, tmp_path):
    launched = replace(testing.measured(), launched=replace(LAUNCHED, files=()))
    store.add_study("one", testing.study(), "test", testing.history(launched))

    script = tmp_path / "a b.sh"
    ended = cclsearch("trial", "script", "one", "0", "-o", script, "--store", store.root)

    assert (ended.out, ended.err) == (f"next: sh '{script}'\n", "")


def run(text, folder):
    (folder / "again.sh").write_text(text, encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/homes/me"}
    command = ["sh", "again.sh", "here"]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    return (folder / "here" / "told").read_text(encoding="utf-8")


def test_the_script_gives_the_job_its_files_environment_and_command(script, tmp_path):
    told = run(script(), tmp_path)

    here = tmp_path / "here"
    assert told == f"two words; $(touch evil)|INFO|{here}/trace|/homes/me/it's here|{FILE}|"
    assert (here / "trace").is_dir()
    assert list(tmp_path.rglob("evil")) == []


def test_the_script_tells_what_it_is_of_and_what_came_out(script):
    lines = script().splitlines()

    assert "# Trial 0 of study 20260101-000000-aaaa (example), recorded by cclsearch." in lines
    assert any(line.startswith("# Configuration ") and "tp=2" in line for line in lines)
    assert "# What came of it: step_time 0.5 s." in lines
    assert any(line.startswith("# It ran on node7: Fast CPU") for line in lines)
    assert "# There, LD_LIBRARY_PATH was ~/lib" in lines


def test_each_context_has_a_script_of_its_own(script):
    files = {"job_json": "own", "contexts__long__job_json": "of the other"}

    assert "\nown\n" in script(contexts=("own", "long"), **files)
    assert "\nof the other\n" in script(contexts=("own", "long"), context="long", **files)
    with pytest.raises(StudyError, match="in context 'short' has no recorded launch"):
        script(contexts=("own", "long"), context="short", **files)


@pytest.mark.parametrize(
    ("launched", "message"),
    [
        (None, "has no recorded launch: an older version, or another tool, recorded it"),
        (replace(LAUNCHED, files=("other.json",)), "kept no other.json"),
        (replace(LAUNCHED, files=("../job.json",)), "names files outside of its folder"),
        (replace(LAUNCHED, folders={"X": "/tmp"}), "names files outside of its folder"),
        (
            replace(LAUNCHED, environment={"A;evil": "1"}),
            "names a variable or command that is none",
        ),
        (replace(LAUNCHED, argv=()), "names a variable or command that is none"),
    ],
)
def test_what_is_not_on_record_or_not_sound_gives_no_script(launched, message, script):
    with pytest.raises(StudyError, match=message):
        script(launched)


def test_a_name_with_line_ends_stays_in_its_comment(store, script):
    store.replace_study(STUDY_ID, replace(testing.study(), name="x\ntouch evil\r\n"))

    assert not any(line.startswith("touch") for line in script().splitlines())


def test_a_launch_is_told_in_a_few_lines():
    lines = [f"{label}: {words}" for label, words in launch_facts(LAUNCHED, MACHINE)]

    assert lines[1] == "environment: DP='two words; $(touch evil)' TRACE_DIR=./trace"
    assert lines[2] == "where: node7, launcher local; job slurm 7; cores 0, 1"
    assert lines[3].startswith("ran on: node7: Fast CPU, 4 of 8 cores, 64 GiB, 2 x NVIDIA H100")
    assert lines[4] == (
        "ended: rank_failed after 12.5 s; the command with status 1, ranks 0 to 1 with status 0, "
        "rank 2 by SIGKILL"
    )
    assert lines[5:] == ["first error of rank 2: ValueError: [31mbad"]


def test_a_machine_is_told_in_a_line():
    assert machine_line(MACHINE) == (
        "node7: Fast CPU, 4 of 8 cores, 64 GiB, 2 x NVIDIA H100 with 80 GiB at 700 W; Debian 12, "
        "CPython 3.11.7, torch 2.13.0, cclsearch 0.1.0 at cccccccccccc, changed (dddddddddddd)"
    )


def test_equal_machines_have_no_differences():
    assert differences(MACHINE, replace(MACHINE)) == ()


def test_what_differs_between_machines_is_named_with_both_sides():
    now = replace(
        MACHINE,
        host="node8",
        gpus=(replace(H100, power_limit_w=500), H100),
        cclsearch=None,
        software={"torch": "2.14.0", "numpy": "2.0"},
        packages={"torch": "2.14.0", "numpy": "2.0"},
        environment={"NCCL_DEBUG": "WARN", "LD_LIBRARY_PATH": "~/lib"},
    )

    assert differences(MACHINE, now) == (
        "host: node7, now node8",
        "GPUs: 2 x NVIDIA H100 with 80 GiB at 700 W, now 1 x NVIDIA H100 with 80 GiB at 500 W, "
        "1 x NVIDIA H100 with 80 GiB at 700 W",
        "cclsearch's commit: cccccccccccc, changed (dddddddddddd), now unknown",
        "torch: 2.13.0, now 2.14.0",
        "NCCL_DEBUG: INFO, now WARN",
        "numpy: unknown, now 2.0",
        "other packages: left-pad differ in version or are not installed",
    )


def test_a_machine_is_kept_once_and_read_back(store):
    first, again = store.keep_machine(MACHINE), store.keep_machine(replace(MACHINE))

    assert first == again == MACHINE.digest
    assert store.machine(first) == MACHINE
    assert store.machine("0" * 64) is None


def test_a_description_that_is_gone_or_none_hides_no_trial(store, cclsearch):
    wrong = store.artifacts.keep_text('{"host": 1}', "machine.json").digest
    for number, digest in enumerate(("0" * 64, wrong)):
        failed = replace(testing.failed(), launched=replace(LAUNCHED, machine=digest))
        study_id = f"b{number}"
        store.add_study(study_id, testing.study(), "test", [testing.trial(0, failed)])

        shown = cclsearch("trial", "show", study_id, "0", "--store", store.root)

        assert (shown.code, shown.err) == (0, "")
        assert "ran on: a machine whose description is no longer stored" in shown.out


def test_trial_show_tells_the_launch_and_gives_all_of_it_as_json(store, cclsearch):
    launched = replace(LAUNCHED, machine=store.keep_machine(MACHINE))
    failed = replace(testing.failed(), launched=launched)
    store.add_study("b", testing.study(), "test", [testing.trial(0, failed)])

    shown = cclsearch("trial", "show", "b", "0", "--store", store.root).out
    facts = json.loads(cclsearch("trial", "show", "b", "0", "--json", "--store", store.root).out)

    lines = {f"  {label}: {words}" for label, words in launch_facts(LAUNCHED, MACHINE)}
    assert lines <= set(shown.splitlines())
    assert f"next: cclsearch trial script b 0 --store {store.root}" in shown
    assert facts["outcome"]["launched"]["ranks"][3]["signal"] == 9
    assert facts["machine"]["host"] == "node7"
