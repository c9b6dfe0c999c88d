"""What is recorded about machines, launches and their conditions, as people read it."""

import json
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from evaluator.timing.decision import Noise
from records.machine import Checkout, Conditions, Gpu, GpuConditions, LaunchRecord, Machine, RankEnd
from records.store.store import Store
from records.study import Measure
from search.report.data import StudyRecord, report_lines
from search.views.machine import (
    conditions_words,
    differences,
    disturbed_words,
    launch_facts,
)
from search.views.study import REMEDY, noise_words
from tests.support import records as testing
from tests.support.evaluator import Takes

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
UNKNOWN = testing.conditions()
QUIET = replace(UNKNOWN, others_cpu_share=0.02, load_average=1.5)
BUSY = replace(UNKNOWN, others_cpu_share=0.43)


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "store")) as opened:
        yield opened


def test_a_launch_and_its_machine_are_told_in_a_few_lines():
    lines = [f"{label}: {words}" for label, words in launch_facts(LAUNCHED, MACHINE)]

    assert lines[1] == "environment: DP='two words; $(touch evil)' TRACE_DIR=./trace"
    assert lines[2] == "where: node7, launcher local; job slurm 7; cores 0, 1"
    assert lines[3] == (
        "ran on: node7: Fast CPU, 4 of 8 cores, 64 GiB, 2 x NVIDIA H100 with 80 GiB at 700 W; "
        "Debian 12, CPython 3.11.7, torch 2.13.0, cclsearch 0.1.0 at cccccccccccc, changed "
        "(dddddddddddd)"
    )
    assert lines[4] == (
        "ended: rank_failed after 12.5 s; the command with status 1, ranks 0 to 1 with status 0, "
        "rank 2 by SIGKILL"
    )
    assert lines[5:] == ["first error of rank 2: ValueError: [31mbad"]


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

    assert differences(MACHINE, replace(MACHINE)) == ()
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


def test_a_trial_is_shown_with_its_launch_whatever_became_of_its_machine(store, cclsearch):
    wrong = store.artifacts.keep_text('{"host": 1}', "machine.json").digest
    for ordinal, digest in enumerate(("0" * 64, wrong, store.keep_machine(MACHINE))):
        failed = replace(testing.failed(), launched=replace(LAUNCHED, machine=digest))
        store.add_study(f"b{ordinal}", testing.study(), "test", [testing.trial(0, failed)])

    for study in ("b0", "b1"):
        shown = cclsearch("trial", "show", study, "0", "--store", store.root)
        assert (shown.code, shown.err) == (0, "")
        assert "ran on: a machine whose description is no longer stored" in shown.out
    shown = cclsearch("trial", "show", "b2", "0", "--store", store.root).out
    facts = json.loads(cclsearch("trial", "show", "b2", "0", "--json", "--store", store.root).out)

    lines = {f"  {label}: {words}" for label, words in launch_facts(LAUNCHED, MACHINE)}
    assert lines <= set(shown.splitlines())
    assert f"next: cclsearch trial script b2 0 --store {store.root}" in shown
    assert facts["outcome"]["launched"]["ranks"][3]["signal"] == 9
    assert facts["machine"]["host"] == "node7"


@dataclass(frozen=True)
class Watched:
    """Ends like another ending, under these conditions."""

    ending: Takes
    conditions: Conditions

    def outcome(self, study, launch, noise):
        measured = self.ending.outcome(study, launch, noise)
        watched = replace(measured.measurement, conditions=self.conditions)
        return replace(measured, measurement=watched)


@pytest.fixture
def finished(tabular):
    """A finished study whose launch of n=1 was disturbed."""
    study = tabular(
        {0: Watched(Takes(step_time_s=2.0), QUIET), 1: Watched(Takes(step_time_s=1.0), BUSY)}
    )
    return study, study.run()


def test_everything_that_a_machine_tells_is_shown():
    causes = ("power cap", "heat (software)")
    gpu = GpuConditions(sm_clock_hz=1.98e9, temperature_celsius=61, slowed_by=causes)
    conditions = replace(
        UNKNOWN, available_memory_bytes=3 << 30, cpu_clock_hz=2.5e9, gpus=(gpu,), steal_share=0.01
    )

    assert conditions_words(UNKNOWN) == "nothing disturbed the launch"
    assert conditions_words(QUIET) == "nothing disturbed the launch (others 2 %, load 1.5)"
    assert conditions_words(conditions) == (
        "GPU 0 was slowed by heat (software) (steal 1 %, 3.0 GiB available, CPU at 2.50 GHz, "
        "GPU 0 at 1.98 GHz, GPU 0 at 61 °C, GPU 0 at its power cap)"
    )


def test_the_report_counts_disturbed_launches_of_trials_and_of_re_measuring(finished, cclsearch):
    study, finding = finished

    record = StudyRecord.of(study.study_id, study.store)

    disturbed = [
        words for label, words in report_lines(finding, record, "") if label == "disturbed"
    ]
    assert record.disturbed.watched_count == record.launch_count
    assert disturbed == [disturbed_words(record.disturbed)]
    assert disturbed[0].startswith(
        f"{record.disturbed.launch_count} of {record.launch_count} launches, the last because other"
    )
    shown = cclsearch("trial", "show", "1", "--store", study.root).out
    assert "machine: other processes used 43% of the cores" in shown


@pytest.mark.parametrize(
    ("sd", "said"),
    [
        (0.1, "4 rounds show differences from 56.2 %"),
        (0.5, f"4 rounds show no difference below 9.3x; {REMEDY}"),
        (2.0, f"4 rounds cannot show a difference; {REMEDY}"),
        (900.0, f"4 rounds cannot show a difference; {REMEDY}"),
    ],
)
def test_noise_that_hides_large_differences_is_said_as_a_factor(sd: float, said: str) -> None:
    words = noise_words(Noise(sd=sd, freedom=1), Measure(max_confirm_rounds=2))

    assert words.endswith(f"(standard deviation); {said}")
