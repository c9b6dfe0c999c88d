"""First candidates from earlier studies: which studies count, and when they are given up."""

from contextlib import closing
from dataclasses import replace

import pytest

from evaluator.timing.decision import Comparison, Spread, Verdict
from policies.space import Space
from records.codec import to_json
from records.store.store import Store
from records.study import Dimension, Objective
from records.trial import History
from search.loop.study_result import StudyResult
from search.strategies.earlier import with_earlier
from search.strategies.offline import HybridChooser
from tests.support import records as testing

STUDY = testing.study()
SPACE = Space(STUDY.space, STUDY.workload, STUDY.environment)
SEED, BEST, OTHER = {"tp": 1, "pp": 1}, {"tp": 4, "pp": 1}, {"tp": 2, "pp": 2}


def against_seed(ratio, verdict=Verdict.FAST):
    return Comparison(verdict=verdict, reason="", ratio=ratio)


FASTER = against_seed(0.5)


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "store")) as opened:
        yield opened


@pytest.fixture
def searched(store):
    """Records a finished study whose trial 1 has these settings."""

    def add(name, study=STUDY, *, settings=BEST, compared=FASTER, winner=1):
        found = StudyResult(
            stop_reason="",
            winner=winner,
            unit="s",
            result=Spread(centre=0.5, low=None, high=None, launch_count=1),
            against_seed=compared,
            ties=(),
            unreliable=(),
        )
        trials = (testing.trial(0, 1.0, SEED), testing.trial(1, 0.5, settings))
        store.add_study(name, study, "1", trials, summary=to_json(found))

    return add


def of_work(**sizes):
    return replace(STUDY, workload=replace(STUDY.workload, **sizes))


def test_the_best_of_studies_of_like_work_is_known_with_the_most_alike_first(store, searched):
    searched("far", of_work(global_batch=256), settings=OTHER)
    searched("near", of_work(global_batch=32), settings=BEST)

    found = with_earlier(STUDY, store).earlier

    assert [(best.study, dict(best.settings)) for best in found] == [("near", BEST), ("far", OTHER)]
    assert found[0].speedup == 2.0
    assert found[0].differs == "global_batch 32 not 16"


def test_one_configuration_is_taken_from_the_most_alike_study_alone(store, searched):
    searched("other", of_work(global_batch=32))
    searched("same")

    assert [best.study for best in with_earlier(STUDY, store).earlier] == ["same"]


@pytest.mark.parametrize(
    "study",
    [
        replace(STUDY, objective=Objective(expression="tokens_per_s", direction="maximize")),
        replace(STUDY, environment=replace(STUDY.environment, accelerator="H100")),
        replace(STUDY, environment=replace(STUDY.environment, world_size=8)),
        replace(STUDY, launch=replace(STUDY.launch, recipe="collectives")),
        testing.study(Dimension(name="tp", choices=(1, 2, 4))),
    ],
    ids=["objective", "accelerator", "ranks", "recipe", "knobs"],
)
def test_a_study_of_another_kind_teaches_nothing(store, searched, study):
    searched("another", study)

    assert with_earlier(STUDY, store).earlier == ()


@pytest.mark.parametrize(
    ("compared", "winner"),
    [
        (against_seed(0.9, Verdict.UNDECIDED), 1),
        (None, 1),
        (None, 0),
        (None, None),
    ],
    ids=["undecided", "not_compared", "the_seed", "nothing_measured"],
)
def test_a_best_that_was_not_shown_to_be_better_than_its_seed_is_no_candidate(
    store, searched, compared, winner
):
    searched("unsure", compared=compared, winner=winner)

    assert with_earlier(STUDY, store).earlier == ()


def test_candidates_come_right_after_the_seed_and_say_where_they_are_from(store, searched):
    searched("far", of_work(global_batch=256), settings=OTHER)
    searched("near", of_work(global_batch=32))
    study = with_earlier(STUDY, store)
    chooser = HybridChooser(SPACE)
    history = History((testing.trial(0, 1.0, SEED),))

    first = chooser.choose(study, history)
    second = chooser.choose(study, History((*history, testing.trial(1, 0.6, BEST))))

    assert dict(first.config.values) == BEST
    assert first.why == (
        "the best of study near for other work (global_batch 32 not 16), 2.00x as good as its seed"
    )
    assert dict(second.config.values) == OTHER


@pytest.mark.parametrize("outcome", [1.1, testing.failed()], ids=["slower", "failed"])
def test_after_one_that_is_no_better_than_the_seed_none_is_tried(store, searched, outcome):
    searched("far", of_work(global_batch=256), settings=OTHER)
    searched("near")
    study = with_earlier(STUDY, store)

    history = History((testing.trial(0, 1.0, SEED), testing.trial(1, outcome, BEST)))
    choice = HybridChooser(SPACE).choose(study, history)

    assert "the best of study" not in choice.why


def test_settings_that_this_space_does_not_have_are_left_out(store, searched):
    searched("wider", settings={"tp": 8, "pp": 1})
    study = with_earlier(STUDY, store)

    choice = HybridChooser(SPACE).choose(study, History((testing.trial(0, 1.0, SEED),)))

    assert "the best of study" not in choice.why
