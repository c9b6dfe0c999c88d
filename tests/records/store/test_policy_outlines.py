"""Policies of a study in outline: in the order of their first trials, page by page."""

from contextlib import closing
from dataclasses import replace

import pytest

from records.store.queries import PolicyResult
from records.store.store import Store
from records.trial import FailureKind, Policy
from tests.support import records as testing


@pytest.fixture
def store(tmp_path):
    """A store with a study of six trials by three policies, of which one failed, and another."""
    with closing(Store(tmp_path / "store")) as made:
        for study_id in ("a", "b"):
            outcomes = (0.5, 0.25, testing.failed(FailureKind.HANG), 1.0, 2.0, 3.0)
            trials = [
                replace(
                    testing.trial(n, outcome, {"n": n}),
                    policy=Policy(
                        source=f"{study_id}{n % 3}",
                        author=f"by {n}",
                        rationale=f"why {n}",
                        parent=f"parent of {n}" if n else None,
                    ),
                )
                for n, outcome in enumerate(outcomes)
            ]
            made.add_study(study_id, testing.study(), "test", trials)
        yield made


def test_policies_are_those_of_their_first_trials_page_by_page(store):
    found, total = store.policy_outlines("a", 10, 0)

    told = [(each.first_trial, each.author, each.parent, each.trial_count) for each in found]
    assert told == [
        (0, "by 0", None, 2),
        (1, "by 1", "parent of 1", 2),
        (2, "by 2", "parent of 2", 2),
    ]
    assert total == 3
    pages = [store.policy_outlines("a", 1, offset)[0] for offset in range(4)]
    assert [one for page in pages for one in page] == list(found)
    assert pages[3] == ()


def test_results_tell_how_the_first_trials_ended(store):
    digests = [each.digest for each in store.policy_outlines("a", 10, 0)[0]]

    first = store.policy_results("a", digests, 1)
    every = store.policy_results("a", digests[2:], 10)
    assert [[one.ordinal for one in first[digest]] for digest in digests] == [[0], [1], [2]]
    assert every[digests[2]] == (
        PolicyResult(ordinal=2, value=None, unit="", failure=FailureKind.HANG),
        PolicyResult(ordinal=5, value=3.0, unit="s", failure=None),
    )


def test_a_policy_is_found_in_its_own_study_alone(store):
    (outline, *_), _ = store.policy_outlines("a", 1, 0)

    assert store.policy("a", outline.digest) == Policy(
        source="a0", author="by 0", rationale="why 0", parent=None
    )
    assert store.policy("b", outline.digest) is None
    assert store.policy("a", "0" * 64) is None
    assert store.policy_results("b", [outline.digest], 5) == {}
