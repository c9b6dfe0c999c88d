"""The public recorded searches, whole."""

import json
from collections import Counter

import pytest

from records.trial import Failed, FailureKind, History
from search.transfer.foreign_studies import BadRows
from search.transfer.importers import studies_of

SEARCHES, CARDS = "ccl_search_histories.jsonl", "ccl_search_card_trials.jsonl"
SIMULATED = "astra_sim_policy_search_histories.jsonl"


@pytest.fixture(scope="module")
def searches(recorded_data):
    """The 15 searches by their names."""
    found = studies_of(str(recorded_data / SEARCHES), None, BadRows())
    return {one.study.name: one for one in found}


def test_all_searches_are_read_whole(searches):
    trials = [trial for one in searches.values() for trial in one.trials]
    ends = Counter(t.outcome.kind if isinstance(t.outcome, Failed) else "" for t in trials)
    assert (len(searches), len(trials)) == (15, 154)
    # Of 85 successes 6 were served from a cache, as were 7 of 69 failures.
    assert (ends[""], ends[FailureKind.DUPLICATE]) == (79, 13)
    assert (ends[FailureKind.INFRASTRUCTURE], ends[FailureKind.POLICY_ERROR]) == (4, 3)


@pytest.mark.parametrize(("name", "studies", "trials"), [(CARDS, 5, 58), (SIMULATED, 15, 130)])
def test_trials_of_cards_and_of_simulators_are_read_whole(recorded_data, name, studies, trials):
    found = list(studies_of(str(recorded_data / name), None, BadRows()))
    assert (len(found), sum(len(one.trials) for one in found)) == (studies, trials)
    assert len({one.id for one in found}) == studies


def test_every_search_can_be_shown_and_tells_its_best(recorded_data, cclsearch):
    cclsearch("import", recorded_data / SEARCHES)
    studies = json.loads(cclsearch("list", "--json").out)
    shown = [cclsearch("show", study["id"]) for study in studies]
    assert [one.code for one in shown] == [0] * 15
    assert sum("\nbest: trial" in one.out for one in shown) == 14  # in one nothing was measured
    assert cclsearch("best", "20260429_093910", "--format", "args").out == (
        "--activation-checkpointing=true --dp=4 --micro-batch-size=2 --pp=4 --tp=1\n"
    )


def test_the_published_winners_are_the_best(searches):
    best = {name: History(tuple(one.trials)).best for name, one in searches.items()}
    assert best["20260429_093910_titan_best"].score.value == 1.499781809
    assert best["20260429_115146_megatron_best"].ordinal == 12
    assert best["20260504_195029_ds_megatron_step_time_gpu"].ordinal == 9
    assert best["20260428_184951"] is None
