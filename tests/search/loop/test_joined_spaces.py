"""Configurations of several contexts as one, and the space of what can be set in all of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import StudyError
from records.trial import Config
from search.study.spaces import join_contexts, own_part, part_of, space_of

CONFIGS = st.dictionaries(st.sampled_from(["n", "tp", "n_2"]), st.integers(), max_size=3).map(
    Config
)


@given(own=CONFIGS, big=CONFIGS, bigger=CONFIGS)
def test_a_joined_configuration_comes_apart_into_what_it_was_made_of(own, big, bigger):
    whole = join_contexts(own, {"big": big, "bigger": bigger})

    assert own_part(whole) == own
    assert part_of(whole, "big") == big
    assert part_of(whole, "bigger") == bigger


def test_feasible_is_what_every_context_takes(context, study_with):
    space = space_of(study_with(context("big", choices=(1, 2, 3)), context("small", choices=(2,))))

    assert space.feasible == (Config({"n": 2, "big.n": 2, "small.n": 2}),)
    assert space.answer(space.feasible[0]) == {"n": 2}


def test_a_context_that_is_held_out_takes_part_in_what_is_feasible_only(context, study_with):
    space = space_of(study_with(context("later", held_out=True, choices=(1, 2, 3))))

    assert space.feasible == (Config({"n": 1}), Config({"n": 2}))


def test_contexts_that_share_nothing_say_what_could_do(context, study_with):
    space = space_of(study_with(context("big", choices=(7,))))

    assert space.feasible == ()
    (why,) = space.obstacles()
    assert "--strategy llm" in why


def test_policies_can_do_more_than_what_is_the_same_everywhere(context, study_with):
    assert not space_of(study_with(context("big"))).is_listable
    assert space_of(study_with()).is_listable


def test_settings_are_those_of_the_own_context(context, study_with):
    space = space_of(study_with(context("big")))

    assert space.settings(Config({"n": 1, "big.n": 2})) == {"n": 1}


def test_a_knob_that_looks_joined_is_refused(context, study_with):
    study = study_with(context("big"))
    (knob,) = study.space.dimensions
    dotted = replace(study.space, dimensions=(replace(knob, name="big.n"),))

    with pytest.raises(StudyError, match="rename it"):
        space_of(replace(study, space=dotted))


@pytest.mark.parametrize("name", ["", "a.b", "../up", "a b", "-x"])
def test_names_of_contexts_are_fit_for_folders_and_knobs(context, name):
    with pytest.raises(StudyError, match="letters, digits"):
        context(name)


@pytest.mark.parametrize("names", [("big", "big"), ("example",)])
def test_every_context_has_a_name_of_its_own(context, study_with, names):
    with pytest.raises(StudyError, match="names two contexts, or one and the study"):
        study_with(*(context(name) for name in names))
