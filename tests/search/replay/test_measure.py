"""Trials launched again: what is confirmed, what is not, and what stays open."""

import re
from contextlib import closing
from dataclasses import replace

import pytest

from records.errors import StudyError
from records.store.store import Store
from records.study import MEASURE, Origin
from records.trial import FailureKind, Policy, Purpose, Stage
from search.replay.claims import Holds, source_of
from tests.support import records as testing
from tests.support.evaluator import Fails, InTurn, Takes

pytestmark = pytest.mark.usefixtures("unjailed")
SEED = "def generate_config(workload, environment):\n    return {'n': 0}\n"
THOROUGH = {"confirm_rounds": 4, "max_confirm_rounds": 4}
LOST = Fails(kind=FailureKind.INFRASTRUCTURE, message="node lost")
FULL = Fails(kind=FailureKind.OUT_OF_MEMORY)


def takes(step_time_s, **fields):
    return Takes(step_time_s=step_time_s, noise=0.02, **fields)


ENDINGS = {0: takes(0.5), 1: takes(0.4), 2: takes(0.2), 3: FULL}


@pytest.fixture(scope="module")
def original(record_once):
    study = record_once(ENDINGS, measure=THOROUGH)
    study.run()
    return study


@pytest.fixture
def searched(original, tmp_path):
    return original.copied(tmp_path / "copy")


def claims(decision):
    return {claim.name: claim.holds for claim in decision.claims}


def test_the_best_is_confirmed_where_nothing_changed(searched, replaying):
    (decision,) = replaying(searched, {}).run()

    assert decision.trial.ordinal == 2
    assert decision.holds is Holds.CONFIRMED
    assert claims(decision) == dict.fromkeys(
        ("work", "value", "lead over trial 0"), Holds.CONFIRMED
    )


def test_what_is_slower_here_is_not_confirmed_and_the_numbers_say_why(searched, replaying):
    slower = {n: takes(2 * each.step_time_s) for n, each in ENDINGS.items() if n < 3}

    (decision,) = replaying(searched, slower).run()

    assert decision.holds is Holds.NOT_CONFIRMED
    assert claims(decision)["value"] is Holds.NOT_CONFIRMED
    assert claims(decision)["lead over trial 0"] is not Holds.NOT_CONFIRMED
    value = next(claim for claim in decision.claims if claim.name == "value")
    assert value.ratio == pytest.approx(2, rel=0.1)
    assert re.search(r"at most 1\d\.\d % worse was to be shown", value.why)
    assert "and 10 % are for the time between" in value.why


def test_what_is_better_here_than_on_record_holds(searched, replaying):
    (decision,) = replaying(searched, {0: takes(0.25), 2: takes(0.1)}).run()

    assert decision.holds is Holds.CONFIRMED


def test_a_lead_that_is_gone_is_not_confirmed_though_the_value_is_reached(searched, replaying):
    (decision,) = replaying(searched, {0: takes(0.2)}).run()

    assert claims(decision)["value"] is Holds.CONFIRMED
    assert claims(decision)["lead over trial 0"] is Holds.NOT_CONFIRMED
    assert decision.holds is Holds.NOT_CONFIRMED


def test_a_lead_that_is_much_smaller_than_announced_is_not_confirmed(searched, replaying):
    (decision,) = replaying(searched, {0: takes(0.3)}).run()

    assert claims(decision)["lead over trial 0"] is Holds.NOT_CONFIRMED


def test_launches_that_vary_too_much_leave_it_undecided_with_what_would_decide_it(
    searched, replaying
):
    wild = Takes(step_time_s=0.21, noise=0.6)

    (decision,) = replaying(searched, {2: wild}, rounds=4).run()

    assert decision.holds is Holds.UNDECIDED
    assert {claim.decides for claim in decision.claims if claim.decides} == {
        "more rounds (--rounds), or a quieter machine"
    }


def test_more_launches_are_made_only_until_it_is_decided(searched, replaying):
    replay = replaying(searched, {}, rounds=12)

    (decision,) = replay.run()

    assert decision.holds is Holds.CONFIRMED
    assert decision.launch_count < 20


def test_other_losses_are_other_work(searched, replaying):
    (decision,) = replaying(searched, {2: takes(0.2, losses=(4.0, 3.5, 9.0))}).run()

    assert decision.holds is Holds.NOT_CONFIRMED
    assert "computed something else: loss 9.0000" in decision.claims[0].why


def test_a_failure_here_is_not_confirmed_unless_the_surroundings_failed(searched, replaying):
    (broken,) = replaying(searched, {2: InTurn((takes(0.2), FULL))}).run()
    (lost,) = replaying(searched, {2: LOST}, study_id="20260103-000000-dddd").run()

    assert (broken.holds, claims(broken)) == (
        Holds.NOT_CONFIRMED,
        {"launch": Holds.NOT_CONFIRMED},
    )
    assert lost.holds is Holds.UNDECIDED
    assert lost.claims[0].decides == "another launch; this one failed by its surroundings"


def test_what_failed_on_record_is_confirmed_when_it_fails_again_in_the_same_way(
    searched, replaying
):
    (again,) = replaying(searched, {}, "3").run()
    measured, crashed = (
        replaying(searched, {3: ending}, "3", study_id=f"again-{n}").run()[0]
        for n, ending in enumerate((takes(0.5), Fails(kind=FailureKind.CRASH)))
    )

    assert (again.holds, again.launch_count) == (Holds.CONFIRMED, 1)
    assert again.claims[0].why == "it fails again with out_of_memory: as the table says"
    assert (measured.holds, crashed.holds) == (Holds.NOT_CONFIRMED, Holds.NOT_CONFIRMED)


def test_a_whole_trajectory_begins_with_the_best_and_the_seed(searched, replaying):
    replay = replaying(searched, {}, "all")

    decisions = replay.run()

    assert [decision.trial.ordinal for decision in decisions] == [2, 0, 1, 3]
    assert {decision.holds for decision in decisions[:1]} == {Holds.CONFIRMED}
    assert all(d.holds is not Holds.NOT_CONFIRMED for d in decisions)


def test_every_launch_is_on_record_in_a_study_of_its_own_and_the_source_stays_as_it_was(
    searched, replaying
):
    with closing(Store(searched.root)) as store:
        before = everything(store, searched.study_id)
    replay = replaying(searched, {})

    (decision,) = replay.run()

    with closing(Store(searched.root)) as store:
        row, (trial,) = store.find(replay.study_id), store.history(replay.study_id)
        repeats = store.repeats(replay.study_id)
        after = everything(store, searched.study_id)
    assert (row.status, row.strategy, row.study.replay_of) == (
        "finished",
        MEASURE,
        searched.study_id,
    )
    assert len(replay.evaluator.launches) == 1 + len(repeats) == decision.launch_count
    assert {repeat.ordinal for repeat in repeats} == {0, 2}
    assert {repeat.purpose for repeat in repeats} == {Purpose.CONFIRM}
    assert trial.policy == decision.trial.policy
    assert trial.outcome.artifacts
    assert after == before


def everything(store, study_id):
    return store.find(study_id), store.history(study_id), store.repeats(study_id)


class Interrupted:
    """Ctrl-C is pressed during the launch."""

    def outcome(self, *_):
        raise KeyboardInterrupt


@pytest.mark.parametrize("finished", [0, 3])
def test_a_replay_that_was_interrupted_goes_on_where_it_was(searched, replaying, finished):
    ended = (takes(0.2),) * finished
    replay = replaying(searched, {2: InTurn((*ended, Interrupted(), takes(0.2)))})

    with pytest.raises(KeyboardInterrupt):
        replay.run()
    with closing(Store(searched.root)) as store:
        status = store.find(replay.study_id).status
    (decision,) = replay.run()

    assert status == "interrupted"
    assert decision.holds is Holds.CONFIRMED
    # One of a round that was cut short had ended beside the one that was not.
    assert len(replay.evaluator.launches) - decision.launch_count in (1, 2)


def test_a_finished_replay_tells_the_same_again_without_a_launch(searched, replaying):
    replay = replaying(searched, {})
    first = replay.run()
    count = len(replay.evaluator.launches)

    again = replay.run()

    assert again == first
    assert len(replay.evaluator.launches) == count


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("9", "has no trial 9; see `cclsearch show"),
        ("worst", "--trial 'worst' is not a trial; write best, seed, all or a number"),
    ],
)
def test_a_trial_that_there_is_not_is_named(searched, which, words):
    with closing(Store(searched.root)) as store:
        source = source_of(store.find(searched.study_id), store)

        with pytest.raises(StudyError, match=words):
            source.chosen(which)


def test_an_imported_study_without_its_launches_is_refused_in_one_line(searched):
    with closing(Store(searched.root)) as store:
        row = store.find(searched.study_id)
        foreign = replace(row.study, origin=Origin(kind="jsonl", source="histories.jsonl"))

        with pytest.raises(StudyError, match="does not say how its trials are launched"):
            source_of(replace(row, study=foreign), store)
        bundled = replace(row.study, origin=Origin(kind="bundle", source="study.zip"))
        assert source_of(replace(row, study=bundled), store).best.ordinal == 2


def test_a_policy_that_came_to_no_launch_is_asked_again_and_fails_again(searched, replaying):
    wrong = Policy(source=SEED.replace("0}", "9}"), author="x")
    refused = replace(
        testing.trial(4, testing.failed(FailureKind.INVALID_CONFIG, Stage.CHECK)), policy=wrong
    )
    with closing(Store(searched.root)) as store:
        store.finish(searched.study_id, refused)
    replay = replaying(searched, {}, "4")

    (decision,) = replay.run()

    assert decision.holds is Holds.CONFIRMED
    assert "it fails again with invalid_config: knob n is 9" in decision.claims[0].why
    assert replay.evaluator.launches == []
