"""Trials launched again: what is confirmed, what is not, what stays open, and how it is said."""

import json
import re
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from records.errors import StudyError
from records.machine import LaunchRecord, Machine
from records.store.store import Store
from records.study import MEASURE, Origin
from records.trial import Config, FailureKind, Policy, Purpose, Stage
from search.compose import Backend
from search.loop.batch import Capacity
from search.loop.trial import ContextEvaluator
from search.replay.measure import Claim, Decision, Holds, source_of
from search.replay.view import decisions_report
from tests.support import records as testing
from tests.support.evaluator import Fails, InTurn, TabularEvaluator, Takes

SEED = "def generate_config(workload, environment):\n    return {'n': 0}\n"
LOST = Fails(kind=FailureKind.INFRASTRUCTURE, message="node lost")
FULL = Fails(kind=FailureKind.OUT_OF_MEMORY)
SURROUNDINGS = "another launch; this one failed by its surroundings"
YES, NO, OPEN = Holds.CONFIRMED, Holds.NOT_CONFIRMED, Holds.UNDECIDED


def takes(step_time_s, **fields):
    return Takes(step_time_s=step_time_s, noise=0.02, **fields)


class Interrupted:
    """Ctrl-C is pressed during the launch."""

    def outcome(self, *_):
        raise KeyboardInterrupt


ENDINGS = {0: takes(0.5), 1: takes(0.4), 2: takes(0.2), 3: FULL}
SLOWER = {0: takes(1.0), 1: takes(0.8), 2: takes(0.4)}
WILD = Takes(step_time_s=0.21, noise=0.6)


@pytest.fixture(scope="module")
def original(record_once):
    study = record_once(ENDINGS, measure={"confirm_rounds": 4, "max_confirm_rounds": 4})
    study.run()
    return study


@pytest.fixture
def searched(original, tmp_path):
    return original.copied(tmp_path / "copy")


@pytest.fixture
def store(searched):
    with closing(Store(searched.root)) as opened:
        yield opened


def claims(decision):
    return {claim.name: claim.holds for claim in decision.claims}


# What holds.


@pytest.mark.parametrize(
    ("here", "holds"),
    [
        ({}, {"work": YES, "value": YES, "lead over trial 0": YES}),
        ({0: takes(0.25), 2: takes(0.1)}, {"work": YES, "value": YES, "lead over trial 0": YES}),
        ({0: takes(0.2)}, {"work": YES, "value": YES, "lead over trial 0": NO}),
        ({0: takes(0.3)}, {"work": YES, "value": YES, "lead over trial 0": NO}),
        ({2: InTurn((takes(0.2), FULL))}, {"launch": NO}),
        ({2: LOST}, {"launch": OPEN}),
    ],
    ids=["nothing changed", "better", "lead gone", "lead much smaller", "fails", "node lost"],
)
def test_every_claim_of_the_best_is_judged(searched, replaying, here, holds):
    (decision,) = replaying(searched, here).run()
    assert decision.trial.ordinal == 2
    assert claims(decision) == holds
    assert decision.launch_count < 20  # made only until it is decided
    assert {claim.decides for claim in decision.claims} <= {None, SURROUNDINGS}


def test_what_is_slower_here_is_not_confirmed_and_the_numbers_say_why(searched, replaying):
    (decision,) = replaying(searched, SLOWER).run()
    assert decision.holds is claims(decision)["value"] is NO
    assert claims(decision)["lead over trial 0"] is not NO
    value = next(claim for claim in decision.claims if claim.name == "value")
    assert value.ratio == pytest.approx(2, rel=0.1)
    assert re.search(r"at most 1\d\.\d % worse was to be shown", value.why)
    assert "and 10 % are for the time between" in value.why


def test_launches_that_vary_too_much_leave_it_undecided_with_what_would_decide_it(
    searched, replaying
):
    (decision,) = replaying(searched, {2: WILD}, rounds=4).run()
    assert decision.holds is OPEN
    decides = {claim.decides for claim in decision.claims if claim.decides}
    assert decides == {"more rounds (--rounds), or a quieter machine"}


def test_other_losses_are_other_work(searched, replaying):
    (decision,) = replaying(searched, {2: takes(0.2, losses=(4.0, 3.5, 9.0))}).run()
    assert decision.holds is NO
    assert "computed something else: loss 9 at" in decision.claims[0].why


@pytest.mark.parametrize(
    ("here", "holds", "why"),
    [
        (FULL, YES, "it fails again with out_of_memory: as the table says"),
        (takes(0.5), NO, "it was measured here, but recorded as failed with out_of_memory"),
        (Fails(kind=FailureKind.CRASH), NO, "it fails here with crash"),
    ],
)
def test_what_failed_is_confirmed_when_it_fails_again_in_the_same_way(
    searched, replaying, here, holds, why
):
    (again,) = replaying(searched, {3: here}, "3").run()
    assert (again.holds, again.launch_count) == (holds, 1)
    assert again.claims[0].why.startswith(why)


def test_a_policy_that_came_to_no_launch_is_asked_again_and_fails_again(searched, store, replaying):
    refused = testing.trial(4, testing.failed(FailureKind.INVALID_CONFIG, Stage.CHECK))
    wrong = Policy(source=SEED.replace("0}", "9}"), author="x")
    store.finish(searched.study_id, replace(refused, policy=wrong))
    replay = replaying(searched, {}, "4")
    (decision,) = replay.run()
    assert decision.holds is YES
    assert "it fails again with invalid_config: knob n is 9" in decision.claims[0].why
    assert replay.evaluator.launches == []


# What is launched and recorded.


def test_a_whole_trajectory_begins_with_the_best_and_the_seed(searched, replaying):
    decisions = replaying(searched, {}, "all").run()
    assert [decision.trial.ordinal for decision in decisions] == [2, 0, 1, 3]
    assert decisions[0].holds is YES
    assert all(d.holds is not NO for d in decisions)


def test_every_launch_is_recorded_in_a_study_of_its_own_and_the_source_stays_as_it_was(
    searched, store, replaying
):
    def everything():
        study_id = searched.study_id
        return store.find(study_id), store.history(study_id), store.repeats(study_id)

    before, replay = everything(), replaying(searched, {})
    (decision,) = replay.run()
    row, (trial,) = store.find(replay.study_id), store.history(replay.study_id)
    repeats = store.repeats(replay.study_id)
    assert (row.status, row.strategy) == ("finished", MEASURE)
    assert row.study.replay_of == searched.study_id
    assert len(replay.evaluator.launches) == 1 + len(repeats) == decision.launch_count
    assert {(repeat.ordinal, repeat.purpose) for repeat in repeats} == {
        *((0, Purpose.CONFIRM), (2, Purpose.CONFIRM))
    }
    assert trial.policy == decision.trial.policy
    assert trial.outcome.artifacts
    assert everything() == before


@pytest.mark.parametrize("finished", [0, 3])
def test_a_replay_that_was_interrupted_goes_on_where_it_was(searched, store, replaying, finished):
    ended = (takes(0.2),) * finished
    replay = replaying(searched, {2: InTurn((*ended, Interrupted(), takes(0.2)))})
    with pytest.raises(KeyboardInterrupt):
        replay.run()
    assert store.find(replay.study_id).status == "interrupted"
    decisions = replay.run()
    assert decisions[0].holds is YES
    # One of a round that was cut short had ended beside the one that was not.
    count = len(replay.evaluator.launches)
    assert count - decisions[0].launch_count in (1, 2)
    assert replay.run() == decisions  # which needs no launch
    assert len(replay.evaluator.launches) == count


def test_an_imported_study_without_its_launches_is_refused_in_one_line(searched, store):
    row = store.find(searched.study_id)
    foreign, bundled = (
        replace(row, study=replace(row.study, origin=Origin(kind=kind, source="x")))
        for kind in ("jsonl", "bundle")
    )
    with pytest.raises(StudyError, match="does not say how its trials are launched"):
        source_of(foreign, store)
    assert source_of(bundled, store).best.ordinal == 2


# As it is typed.


@pytest.fixture
def machine(monkeypatch):
    """Puts a table in the place of this machine; gives the configurations that are launched."""

    def put(**endings):
        rows = {**ENDINGS, **{int(n[1:]): ending for n, ending in endings.items()}}
        evaluator = TabularEvaluator(endings={Config({"n": n}): e for n, e in rows.items()})

        @contextmanager
        def here(_study_id, _study, _store, _first, seed):
            yield Backend(
                scrubber=None,
                evaluator=ContextEvaluator(evaluator),
                model=lambda *_: None,
                seed=seed,
                fits=lambda *_: False,
                capacity=Capacity(),
                sleep=lambda _: None,
            )

        monkeypatch.setattr("search.cli.replay.live_backend", here)
        return evaluator.launches

    return put


@pytest.fixture
def measure(searched, cclsearch):
    """Measures again in the store of the study."""

    def run(*words):
        return cclsearch("replay", "--mode", "measure", *words, "--store", searched.root)

    return run


def finding(ended):
    return json.loads(ended.out.splitlines()[-1])


def test_the_verdict_comes_last_with_every_claim_before_it(machine, measure, searched):
    machine()
    ended = measure("--strict")
    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert lines[1] == f"repeated launches of study {searched.study_id}"
    assert "trial 2: confirmed: n=2" in lines
    assert "work: confirmed, 2048 tokens a step, the 3 recorded losses" in lines
    assert any(line.startswith("value: confirmed, step_time 0.") for line in lines)
    assert any(line.startswith("lead over trial 0: confirmed, 2.") for line in lines)
    assert "replay: confirmed" in lines
    # Measured again without an id, the newest study that is no replay is the one.
    assert finding(measure("--json"))["replay_of"] == searched.study_id


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--strict",), 7)])
def test_what_does_not_hold_ends_with_7_where_that_was_to_fail(machine, measure, words, code):
    machine(n2=takes(0.4))
    ended = measure(*words)
    assert ended.code == code
    assert "replay: not confirmed" in ended.out
    assert "next: cclsearch trial show" in ended.out


def test_a_program_is_told_every_claim_with_its_numbers(machine, measure, searched):
    machine(n2=takes(0.4))
    told = finding(measure("--json"))
    assert (told["event"], told["mode"], told["holds"]) == ("finished", "measure", "not confirmed")
    assert told["replay_of"] == searched.study_id
    (trial,) = told["trials"]
    assert (trial["ordinal"], trial["config"], trial["holds"]) == (2, {"n": 2}, "not confirmed")
    value = next(claim for claim in trial["claims"] if claim["name"] == "value")
    assert value["ratio_low"] < value["ratio"] < value["ratio_high"]


def test_a_replay_goes_on_under_its_own_id_with_more_rounds(machine, measure):
    launches = machine(n2=WILD)
    first = finding(measure("--rounds", "4", "--json"))
    before = len(launches)
    more = finding(measure(first["study_id"], "--rounds", "12", "--json"))
    assert first["holds"] == "undecided"
    assert more["study_id"] == first["study_id"]
    assert more["launches"] == len(launches) > before


def test_an_interrupted_replay_says_how_to_go_on(machine, measure, searched, cclsearch):
    machine(n2=InTurn((takes(0.2), Interrupted(), takes(0.2))))
    ended = measure()
    study_id = ended.err.split("cclsearch replay ")[1].split()[0]
    resumed = cclsearch("resume", study_id, "--store", searched.root)
    assert ended.code == 75
    assert f"cclsearch replay {study_id} --mode measure" in ended.err
    assert (resumed.code, f"`cclsearch replay {study_id}" in resumed.err) == (2, True)
    assert "replay: confirmed" in measure(study_id).out


def test_a_launch_that_fails_by_the_surroundings_leaves_it_undecided(machine, measure):
    machine(n2=LOST)
    ended = measure("--strict")
    assert (ended.code, f"to decide it: {SURROUNDINGS}" in ended.out) == (7, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--trial", "7"), "has no trial 7; see `cclsearch show"),
        (("--trial", "worst"), "--trial 'worst' is not a trial; write best, seed, all or a number"),
        (("--within", "ten"), "--within 'ten' is not a share from 0 to below 1; write it as in 5%"),
        (("--within", "nan"), "--within 'nan' is not a share"),
        (("--vary", "global_batch=1"), "--vary needs --mode policy, not measure"),
        (("nope",), "no study 'nope'"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(measure, words, told):
    ended = measure(*words)
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1)
    assert told in ended.err


@pytest.mark.parametrize("mode", ["measure", "llm"])
def test_an_imported_study_is_not_replayed(searched, store, cclsearch, mode):
    row = store.find(searched.study_id)
    foreign = replace(row.study, origin=Origin(kind="optuna", source="study.db"))
    store.add_study("imported-0", foreign, "test", tuple(store.history(row.id)))
    ended = cclsearch("replay", "imported-0", "--mode", mode, "--store", searched.root)
    assert (ended.code, ended.out) == (2, "")
    assert "study imported-0 was imported, and its record does not say how" in ended.err


def test_what_the_machine_here_has_otherwise_is_listed(searched, store):
    def launched_on(core_count):
        absent = dict.fromkeys(("libc", "cclsearch", "script", "governor"))
        texts = {"host": "h", "system": "Linux", "kernel": "6.1", "python": "3", "version": "0.1"}
        counts = {"core_count": core_count, "usable_core_count": 2, "numa_node_count": 1}
        machine = Machine(**texts, **absent, **counts, cpu_model="a", memory_bytes=1 << 30)
        digest = store.keep_machine(machine)
        launched = LaunchRecord(argv=("true",), reason="done", wall_s=1.0, machine=digest)
        return replace(testing.measured(), launched=launched)

    source = source_of(store.find(searched.study_id), store)
    decision = Decision(
        trial=replace(source.best, outcome=launched_on(96)),
        again=launched_on(2),
        claims=(Claim(name="work", holds=YES, why="2048 tokens a step"),),
        launch_count=1,
    )
    report = decisions_report(
        searched.study_id, searched.study, source, (decision,), store, "x", ""
    )
    (differs,) = [words for label, words in report.verdicts if label == "machine differs"]
    assert "96" in differs
