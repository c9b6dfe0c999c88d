"""`cclsearch replay --mode measure` as it is typed: verdicts, exit codes, refusals, going on."""

import json
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from records.machine import LaunchRecord, Machine
from records.store.store import Store
from records.study import Origin
from records.trial import Config, FailureKind
from search.cli.replay import decisions_report
from search.compose import Backend
from search.loop.batch import Capacity
from search.loop.trial import ContextEvaluator
from search.replay.claims import Claim, Decision, Holds, source_of
from tests.support import records as testing
from tests.support.evaluator import Fails, InTurn, TabularEvaluator, Takes

pytestmark = pytest.mark.usefixtures("unjailed")
ENDINGS = {n: Takes(step_time_s=each, noise=0.02) for n, each in enumerate((0.5, 0.2))}
MACHINE = Machine(
    host="bench",
    system="Linux",
    kernel="6.1",
    libc=None,
    python="3.12",
    version="0.1",
    cclsearch=None,
    script=None,
    cpu_model="a processor",
    core_count=96,
    usable_core_count=2,
    numa_node_count=1,
    memory_bytes=1 << 30,
    governor=None,
)
SLOWER = {n: replace(each, step_time_s=2 * each.step_time_s) for n, each in ENDINGS.items()}


@pytest.fixture(scope="module")
def original(record_once):
    study = record_once(ENDINGS, measure={"confirm_rounds": 4, "max_confirm_rounds": 4})
    study.run()
    return study


@pytest.fixture
def searched(original, tmp_path):
    return original.copied(tmp_path / "copy")


@pytest.fixture
def machine(monkeypatch):
    """Puts a table in the place of this machine; gives the configurations that are launched."""

    def put(endings):
        evaluator = TabularEvaluator(
            endings={Config({"n": n}): each for n, each in endings.items()}
        )

        @contextmanager
        def here(_study, _store, _first, seed):
            yield Backend(
                evaluator=ContextEvaluator(evaluator),
                model=lambda *_: None,
                seed=seed,
                fits=lambda *_: False,
                capacity=Capacity(),
                sleep=lambda _: None,
            )

        monkeypatch.setattr("search.cli.replay.local_backend", here)
        return evaluator.launches

    return put


@pytest.fixture
def measure(searched, cclsearch):
    """Measures again in the store of the study."""

    def run(*words):
        return cclsearch("replay", "--mode", "measure", *words, "--store", searched.root)

    return run


def test_the_verdict_comes_last_with_every_claim_before_it(machine, measure, searched):
    machine(ENDINGS)

    ended = measure("--strict")

    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert lines[1] == f"repeated launches of study {searched.study_id}"
    assert "trial 1: confirmed: n=1" in lines
    assert "work: confirmed, 2048 tokens a step, the 3 recorded losses" in lines
    assert any(line.startswith("value: confirmed, step_time 0.2") for line in lines)
    assert any(line.startswith("lead over trial 0: confirmed, 2.5") for line in lines)
    assert "replay: confirmed" in lines


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--strict",), 7)])
def test_what_does_not_hold_ends_with_7_where_that_was_to_fail(machine, measure, words, code):
    machine(SLOWER)

    ended = measure(*words)

    assert ended.code == code
    assert "replay: not confirmed" in ended.out
    assert "next: cclsearch trial show" in ended.out


def test_a_program_is_told_every_claim_with_its_numbers(machine, measure, searched):
    machine(SLOWER)

    told = json.loads(measure("--json").out.splitlines()[-1])

    assert (told["event"], told["mode"], told["holds"]) == ("finished", "measure", "not confirmed")
    assert told["replay_of"] == searched.study_id
    (trial,) = told["trials"]
    assert (trial["ordinal"], trial["config"], trial["holds"]) == (1, {"n": 1}, "not confirmed")
    value = next(claim for claim in trial["claims"] if claim["name"] == "value")
    assert value["ratio_low"] < value["ratio"] < value["ratio_high"]
    assert value["ratio"] == pytest.approx(2, rel=0.1)


def test_the_newest_study_that_is_no_replay_is_measured(machine, measure, searched):
    machine(ENDINGS)

    measure()
    again = json.loads(measure("--json").out.splitlines()[-1])

    assert again["replay_of"] == searched.study_id


def test_a_replay_goes_on_under_its_own_id_with_more_rounds(machine, measure, searched):
    wild = {**ENDINGS, 1: Takes(step_time_s=0.2, noise=0.6)}
    launches = machine(wild)
    first = json.loads(measure("--rounds", "4", "--json").out.splitlines()[-1])
    before = len(launches)

    more = json.loads(measure(first["study_id"], "--rounds", "12", "--json").out.splitlines()[-1])

    assert first["holds"] == "undecided"
    assert (more["study_id"], more["replay_of"]) == (first["study_id"], searched.study_id)
    assert len(launches) > before
    assert more["launches"] == len(launches)


def test_an_interrupted_replay_says_how_to_go_on(machine, measure, searched, cclsearch):
    class Interrupted:
        def outcome(self, *_):
            raise KeyboardInterrupt

    machine({**ENDINGS, 1: InTurn((ENDINGS[1], Interrupted(), ENDINGS[1]))})

    ended = measure()
    study_id = ended.err.split("cclsearch replay ")[1].split()[0]
    resumed = cclsearch("resume", study_id, "--store", searched.root)
    gone_on = measure(study_id)

    assert ended.code == 75
    assert f"cclsearch replay {study_id} --mode measure" in ended.err
    assert (resumed.code, f"`cclsearch replay {study_id}" in resumed.err) == (2, True)
    assert "replay: confirmed" in gone_on.out


def test_a_launch_that_fails_by_the_surroundings_leaves_it_undecided(machine, measure):
    machine({**ENDINGS, 1: Fails(kind=FailureKind.INFRASTRUCTURE, message="node lost")})

    ended = measure("--strict")

    assert ended.code == 7
    assert "to decide it: another launch; this one failed by its surroundings" in ended.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--trial", "7"), "has no trial 7"),
        (("--within", "ten"), "--within 'ten' is not a share from 0 to below 1; write it as in 5%"),
        (("--within", "nan"), "--within 'nan' is not a share"),
        (("--vary", "global_batch=1"), "--vary needs --mode policy, not measure"),
        (("nope",), "no study 'nope'"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(measure, words, told):
    ended = measure(*words)

    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize("mode", ["measure", "llm"])
def test_an_imported_study_is_refused_in_one_line(searched, cclsearch, mode):
    with closing(Store(searched.root)) as store:
        row = store.find(searched.study_id)
        foreign = replace(row.study, origin=Origin(kind="optuna", source="study.db"))
        store.add_study("imported-0", foreign, "test", tuple(store.history(row.id)))

    ended = cclsearch("replay", "imported-0", "--mode", mode, "--store", searched.root)

    assert (ended.code, ended.out) == (2, "")
    assert "study imported-0 was imported, and its record does not say how" in ended.err


def test_what_the_machine_here_has_otherwise_is_listed(searched):
    with closing(Store(searched.root)) as store:
        source = source_of(store.find(searched.study_id), store)
        then, here = (launched_on(store, replace(MACHINE, core_count=cores)) for cores in (96, 2))
        trial = replace(source.best, outcome=then)
        claim = Claim(name="work", holds=Holds.CONFIRMED, why="2048 tokens a step")
        decision = Decision(trial=trial, again=here, claims=(claim,), launch_count=1)

        report = decisions_report(
            searched.study_id, searched.study, source, (decision,), store, "go on"
        )

    (differs,) = [words for label, words in report.verdicts if label == "machine differs"]
    assert "96" in differs


def launched_on(store, machine):
    launched = LaunchRecord(
        argv=("true",), reason="done", wall_s=1.0, machine=store.keep_machine(machine)
    )
    return replace(testing.measured(), launched=launched)
