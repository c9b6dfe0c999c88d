"""What a machine did around a launch reaches the person who reads about it."""

import json
from dataclasses import dataclass, replace

import pytest

from evaluator.timing.decision import Noise
from records.machine import Conditions, GpuConditions
from records.study import Measure
from search.report.summary import StudyRecord, report_lines
from search.views.machine import conditions_words, disturbed_among, disturbed_words
from search.views.study import noise_words
from tests.support import records as testing
from tests.support.evaluator import Takes

UNKNOWN = Conditions(
    load_average=None,
    others_cpu_share=None,
    steal_share=None,
    cpu_pressure_share=None,
    memory_pressure_share=None,
    io_pressure_share=None,
    available_memory_bytes=None,
    cpu_clock_hz=None,
    cpu_temperature_celsius=None,
)
QUIET = replace(UNKNOWN, others_cpu_share=0.02, load_average=1.5)
BUSY = replace(UNKNOWN, others_cpu_share=0.43)


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


def test_a_quiet_launch_is_told_with_what_the_machine_said():
    assert conditions_words(QUIET) == "nothing disturbed the launch (others 2 %, load 1.5)"
    assert conditions_words(UNKNOWN) == "nothing disturbed the launch"


def test_everything_that_a_machine_tells_is_shown():
    gpu = GpuConditions(sm_clock_hz=1.98e9, temperature_celsius=61, slowed_by=("power cap",))
    conditions = replace(
        UNKNOWN, available_memory_bytes=3 << 30, cpu_clock_hz=2.5e9, gpus=(gpu,), steal_share=0.01
    )

    assert conditions_words(conditions) == (
        "GPU 0 was slowed by power cap (steal 1 %, 3.0 GiB available, CPU at 2.50 GHz, "
        "GPU 0 at 1.98 GHz, GPU 0 at 61 °C)"
    )


def test_disturbed_launches_are_counted():
    measured = testing.measured(1.0)
    quiet, busy = (
        replace(measured, measurement=replace(measured.measurement, conditions=each))
        for each in (QUIET, BUSY)
    )

    assert disturbed_among((quiet, quiet)) is None
    assert disturbed_words(disturbed_among((quiet, busy, quiet))) == (
        "1 of 3 launches, the last because other processes used 43% of the cores; "
        "a quieter machine resolves smaller differences"
    )


def test_the_report_counts_disturbed_launches_of_trials_and_of_re_measuring(finished):
    study, finding = finished

    record = StudyRecord.of(study.study_id, study.store)

    disturbed = [
        words for label, words in report_lines(finding, record, "") if label == "disturbed"
    ]
    assert record.disturbed.watched_count == record.launch_count
    assert disturbed == [disturbed_words(record.disturbed)]


def test_a_trial_is_shown_with_its_conditions(finished, cclsearch):
    study, _ = finished
    asked = ("trial", "show", "1", "--store", study.root)

    assert "machine: other processes used 43% of the cores" in cclsearch(*asked).out
    told = json.loads(cclsearch(*asked, "--json").out)
    assert told["outcome"]["measurement"]["conditions"]["others_cpu_share"] == 0.43


@pytest.mark.parametrize(
    ("sd", "said"),
    [
        (0.1, "4 rounds show differences from 23.1 %"),
        (0.5, "4 rounds show no difference below 2.8x"),
        (2.0, "4 rounds cannot show a difference"),
        (900.0, "4 rounds cannot show a difference"),
    ],
)
def test_noise_that_hides_large_differences_is_said_as_a_factor(sd: float, said: str) -> None:
    words = noise_words(Noise(sd=sd, freedom=1), Measure(max_confirm_rounds=2))

    assert words.endswith(f"(standard deviation); {said}")
