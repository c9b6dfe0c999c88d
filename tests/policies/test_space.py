"""A search space accepts exactly its feasible points, and says what is wrong with others."""

import itertools
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.space import MAX_POINTS, Space
from records.errors import StudyError
from records.study import MAX_CHOICES, Constraint, Dimension, Range, SearchSpace
from records.trial import Config
from tests.support.records import ENVIRONMENT, WORKLOAD


def space(*dimensions, constraints=(), derived=None, **defaults):
    rules = (Constraint(name=f"rule{n}", expression=text) for n, text in enumerate(constraints))
    asked = SearchSpace(dimensions=dimensions, constraints=tuple(rules), defaults=defaults)
    return Space(asked, WORKLOAD, ENVIRONMENT, derived)


def knob(name, *choices, when=None):
    return Dimension(name=name, choices=choices, when=when)


def listed(low, high, step=None, scale="linear"):
    made = space(Dimension(name="k", range=Range(low=low, high=high, step=step, scale=scale)))
    return made.knobs[0].choices


@pytest.mark.parametrize(
    ("arguments", "choices"),
    [
        ((1, 4), (1, 2, 3, 4)),
        ((3, 3), (3,)),
        ((-2, 3, 2), (-2, 0, 2)),
        ((0.1, 1.0, 0.1), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
        ((1e-5, 3e-5, 1e-5), (1e-5, 2e-5, 3e-5)),
        ((1, 12, None, "doubling"), (1, 2, 4, 8)),
        ((0.1, 0.8, None, "doubling"), (0.1, 0.2, 0.4, 0.8)),
        ((1, 2**62, None, "doubling"), tuple(2**n for n in range(63))),
    ],
)
def test_a_range_lists_the_numbers_as_they_are_written(arguments, choices):
    assert repr(listed(*arguments)) == repr(choices)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((4, 1), "range low 4 is above high 1"),
        ((1, 4, 0), "range step 0 is not positive"),
        ((0, 4, None, "doubling"), "doubling range needs low > 0"),
        ((1, 8, 2, "doubling"), "takes no step"),
        ((1, MAX_CHOICES + 1), f"more than {MAX_CHOICES} values"),
        ((0, 1, 5e-324), f"more than {MAX_CHOICES} values"),
        ((0, 10**400), "fit in 64 bits"),
        ((5e-324, 1e308, None, "doubling"), "fit in 64 bits"),
        ((0, float("inf")), "fit in 64 bits"),
        ((float("nan"), 1), "fit in 64 bits"),
        ((0, 1, float("nan")), "not positive and finite"),
    ],
)
def test_a_range_that_makes_no_list_is_refused(arguments, sentence):
    with pytest.raises(StudyError, match=sentence) as refused:
        listed(*arguments)
    assert str(refused.value).startswith("[space] 'k'")


@pytest.mark.parametrize(
    ("dimension", "sentence"),
    [
        (Dimension(name="k"), "'k': give either choices or a range"),
        (Dimension(name="k", choices=(1,), range=Range(low=1, high=2)), "either choices or a"),
        (Dimension(name="k", choices=()), "'k' lists no choices; give at least one"),
        (knob("k", 1, 2, 1), "'k' repeats a choice in [1, 2, 1]"),
        (knob("k", 1, 1.0), "'k' repeats a choice in [1.0, 1.0]"),
        (knob("k", 1, "1"), "'k' mixes types in [1, '1']; use one type"),
        (knob("k", True, 0.5), "'k' mixes types"),
        (knob("k", True, "true"), "'k' mixes types"),
        (knob("k", 1, when="k >"), "'k >' is not an expression"),
        (knob("k", 1, when="other > 1"), "condition of 'k': 'other' is unknown"),
        (knob("world_size", 1), "knob 'world_size' is also a workload or environment field"),
    ],
)
def test_a_malformed_knob_is_named(dimension, sentence):
    with pytest.raises(StudyError) as refused:
        space(dimension)
    assert sentence in str(refused.value)
    with pytest.raises(StudyError, match="knob 'tp' is defined twice"):
        space(knob("tp", 1), knob("pp", 1), knob("tp", 2))


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("tpp > 1", "constraint 'rule0': 'tpp' is unknown; did you mean 'tp'?"),
        ("wold_size > 1", "did you mean 'world_size'?"),
        ("zzzz > 1", "known are tp, phase, precision, global_batch"),
        ("vocab_size > tp", "constraint 'rule0' needs vocab_size, which the study does not give"),
        ("tp.real > 1", "is not allowed"),
        ("tp >", "is not an expression"),
    ],
)
def test_a_malformed_constraint_is_refused_before_any_trial(expression, sentence):
    with pytest.raises(StudyError) as refused:
        space(knob("tp", 1, 2), constraints=[expression])
    assert sentence in str(refused.value)
    with pytest.raises(StudyError, match="modulo by zero"):
        _ = space(knob("tp", 0, 1), constraints=["8 % tp == 0"]).feasible


@pytest.mark.parametrize(
    ("choices", "given_value", "meant"),
    [
        ((1, 2, 4), 4.0, 4),
        ((0.5, 1), 1, 1.0),
        ((True, False), True, True),
        (("1", "2"), "1", "1"),
        ((-1, 0), -0.0, 0),
    ],
)
def test_a_number_means_the_choice_that_it_equals(choices, given_value, meant):
    config = space(knob("k", *choices)).check({"k": given_value})
    assert repr(config["k"]) == repr(meant)


@pytest.mark.parametrize(
    ("choices", "given_value"),
    [
        *(((1, 2, 4), value) for value in (True, "4", 3, 4.000001, None, [4], math.nan, math.inf)),
        *(((0.0, 1.0), value) for value in (True, False, 10**400, "0.5")),
        *(((True, False), value) for value in (1, 1.0, "True")),
        *((("1", "2"), value) for value in (1, "A", "")),
    ],
)
def test_a_value_that_is_no_choice_is_refused_with_the_choices(choices, given_value):
    made = space(knob("k", *choices))
    (fault,) = made.check({"k": given_value})
    assert fault.startswith(f"knob k is {given_value!r}"[:100])
    assert type(given_value).__name__ in fault
    assert fault.endswith(f"not one of {list(made.knobs[0].choices)}")


def test_all_faults_are_named_at_once():
    faults = space(knob("tp", 1, 2), knob("pp", 1), knob("dp", 1)).check(
        {"tp": 3, "dpp": 1, "pp": 1}
    )
    assert faults == (
        "'dpp' is unknown; did you mean 'pp'?",
        "knob tp is 3 (int), not one of [1, 2]",
        "knob dp is missing; choose one of [1]",
    )


def test_long_lists_and_long_values_are_cut_in_messages():
    made = space(Dimension(name="k", range=Range(low=1, high=500)))
    long_value, unknown = made.check({"k": "x" * 10_000}), made.check({"y" * 10_000: 1, "k": 1})
    assert len(long_value[0]) < 300
    assert len(unknown[0]) < 300
    assert long_value[0].endswith("19, 20, ...]")


def test_every_broken_constraint_is_named_with_its_numbers():
    made = Space(
        SearchSpace(
            dimensions=(knob("tp", 1, 2, 4), knob("pp", 1, 2, 4)),
            constraints=(
                Constraint(name="ranks", expression="tp * pp <= world_size", reason="one each"),
                Constraint(name="layers", expression="layer_count % pp == 0"),
                Constraint(name="node", expression="tp <= ranks_per_node"),
            ),
        ),
        WORKLOAD,
        ENVIRONMENT,
    )
    assert made.check({"tp": 4, "pp": 2}) == (
        "breaks ranks: tp * pp <= world_size (one each) with pp=2, tp=4, world_size=4",
        "breaks node: tp <= ranks_per_node with ranks_per_node=2, tp=4",
    )


CONDITIONAL = (
    knob("mode", "none", "some", "all"),
    knob("every", 1, 2, when="mode == 'some'"),
    knob("depth", 1, 2, when="every == 2"),
)


@pytest.mark.parametrize("dimensions", [CONDITIONAL, CONDITIONAL[::-1]])
def test_a_knob_without_effect_is_no_part_of_a_point(dimensions):
    made = space(*dimensions)
    assert made.check({"mode": "all", "every": 2, "depth": 1}) == Config({"mode": "all"})
    for given_values, name in (({}, "every"), ({"every": 2}, "depth")):
        (fault,) = made.check({"mode": "some", **given_values})
        assert fault == f"knob {name} is missing; choose one of [1, 2]"
    assert made.check({"mode": "all"}).digest == made.check({"mode": "all", "every": 1}).digest
    assert made.check({"mode": "some", "every": 1, "depth": 2}).values.keys() == {"mode", "every"}
    assert {str(config) for config in made.feasible} == {
        "mode=none",
        "mode=all",
        "every=1 mode=some",
        "depth=1 every=2 mode=some",
        "depth=2 every=2 mode=some",
    }


def test_a_constraint_on_a_knob_without_effect_does_not_bind():
    made = space(*CONDITIONAL, constraints=["every == 2"])
    assert made.check({"mode": "all"}) == Config({"mode": "all"})
    assert made.check({"mode": "some", "every": 1}) == ("breaks rule0: every == 2 with every=1",)


def test_a_condition_cannot_depend_on_its_own_knob():
    with pytest.raises(StudyError, match=r"conditions go round in a circle: a$"):
        space(knob("a", 0, 1, when="a == 0"), knob("b", 0, 1))
    with pytest.raises(StudyError, match=r"conditions go round in a circle: a, c$"):
        space(knob("a", 1, when="c == 1"), knob("b", 1, 2), knob("c", 1, when="a + b > 1"))


def test_a_knob_that_is_left_out_has_its_default():
    made = space(knob("tp", 1, 2), knob("pp", 1, 2), tp=1, pp=2)
    assert made.check({}) == Config({"tp": 1, "pp": 2})
    assert made.check({"tp": 2}) == Config({"tp": 2, "pp": 2})
    other = space(knob("tp", 2, 4), tp=1)
    assert other.check({}) == ("knob tp is missing; choose one of [2, 4]",)


def test_a_knob_that_is_not_searched_may_be_set_to_what_it_is():
    made = space(knob("tp", 1, 2), pp=1)
    assert made.check({"tp": 2, "pp": 1.0}) == Config({"tp": 2})
    assert made.check({"tp": 2, "pp": 2}) == ("knob pp is 2, but it is not searched: it is 1",)
    assert made.check({"tp": 2, "ppp": 1}) == ("'ppp' is unknown; known are tp",)


def test_texts_that_are_no_choice_are_not_shown_in_constraints():
    made = space(
        knob("mode", "a", "b"),
        knob("n", 1, 2),
        constraints=(
            "mode not in ('a', 'x') or n == 1",
            "mode in ('x', 'y') or n == 2",
            "mode != 'x' or n > 5",
            "mode not in ('a', 'b', 'x') or n == 1 or backend != 'z'",
        ),
        backend="auto",
    )

    assert made.words().split("must hold:\n")[1].splitlines() == [
        "- rule0: mode != 'a' or n == 1",
        "- rule1: n == 2",
    ]


def test_rules_and_conditions_may_name_a_knob_that_is_not_searched_or_has_no_effect():
    unused = space(
        knob("pp", 1, 2), knob("stages", 2, 4, when="pp > 1"), constraints=["stages <= 2"], stages=2
    )
    assert [str(c) for c in unused.feasible] == ["pp=1", "pp=2 stages=2"]
    made = space(
        knob("tp", 1, 2, 4), knob("k", 1, 2, when="pp > 1"), constraints=["tp * pp <= 4"], pp=2
    )
    assert [str(c) for c in made.feasible] == ["k=1 tp=1", "k=2 tp=1", "k=1 tp=2", "k=2 tp=2"]
    assert made.check({"tp": 4, "k": 1}) == ("breaks rule0: tp * pp <= 4 with pp=2, tp=4",)
    assert "Named above and not searched: pp = 2" in made.words()


def test_a_rule_may_name_what_follows_from_a_whole_configuration():
    made = space(
        knob("tp", 1, 2, 4),
        constraints=["size_bytes <= 2 * memory", "tp < 4"],
        derived={"size_bytes": lambda settings: settings["tp"] * settings["unit"] << 20},
        unit=3,
        memory=2 << 20,
    )
    assert [config["tp"] for config in made.feasible] == [1]
    assert made.derived(Config({"tp": 2})) == {"size_bytes": 6 << 20}
    assert made.check({"tp": 2}) == (
        "breaks rule0: size_bytes <= 2 * memory with memory=2097152, size_bytes=6 MiB",
    )


def test_what_breaks_a_plain_rule_is_not_asked_for_what_follows_from_it():
    made = space(
        knob("tp", 0, 1),
        constraints=["share > 0", "tp > 0"],
        derived={"share": lambda s: 1 // s["tp"]},
    )
    assert made.check({"tp": 0}) == ("breaks rule1: tp > 0 with tp=0",)
    assert len(made.feasible) == 1


def test_a_condition_cannot_wait_for_what_follows_from_the_configuration():
    with pytest.raises(StudyError, match="condition of 'tp' names share, which only constraints"):
        space(knob("tp", 1, when="share > 1"), derived={"share": lambda _: 1})


def test_the_feasible_points_are_in_the_order_of_the_knobs_without_repeats():
    made = space(knob("b", 2, 1), knob("a", 1, 2), constraints=["a + b < 4"])
    assert [str(c) for c in made.feasible] == ["a=1 b=2", "a=1 b=1", "a=2 b=1"]
    assert made.size == 4


def test_a_space_without_knobs_has_one_point_and_one_that_nothing_satisfies_none():
    made = space(knob("a", 1, 2), constraints=["a > 2"])
    assert space().feasible == (Config({}),)
    assert (made.feasible, made.sample(3, Random(1))) == ((), ())


def test_what_leaves_a_space_empty_is_named():
    made = space(knob("a", 1, 2), knob("b", 1, 2), constraints=["a > 2", "b > 1"])
    assert made.obstacles() == ("rule0: a > 2",)
    assert space(knob("a", 1), constraints=["a > 1", "a < 1"]).obstacles() == ()
    late = space(knob("a", 1), constraints=["x > 1"], derived={"x": lambda s: s["a"]})
    assert late.obstacles() == ("breaks rule0: x > 1 with x=1",)


def test_a_space_too_large_to_list_says_so_at_once():
    digits = [Dimension(name=f"k{n}", range=Range(low=0, high=9)) for n in range(7)]
    made = space(*digits)
    assert made.size == 10**7 > MAX_POINTS
    with pytest.raises(StudyError, match="too many points to enumerate"):
        _ = made.feasible
    assert not made.is_listable
    assert isinstance(made.check({f"k{n}": 0 for n in range(7)}), Config)


def test_of_a_space_too_large_to_list_a_search_chooses_from_a_sample_and_from_neighbours(
    monkeypatch,
):
    monkeypatch.setattr("policies.space.MAX_POINTS", 2000)
    monkeypatch.setattr("policies.space.SAMPLE_COUNT", 1000)
    digits = [Dimension(name=f"k{n}", range=Range(low=0, high=9)) for n in range(7)]
    made = space(*digits, constraints=["k0 + k1 == 9"])
    zero = made.check({**{f"k{n}": 0 for n in range(7)}, "k1": 9})

    assert len({*made.candidates}) == 1000
    assert all(made.check(config.values) == config for config in made.candidates[:100])
    assert made.candidates == space(*digits, constraints=["k0 + k1 == 9"]).candidates
    near = made.near(zero)
    assert {made.distance(zero, config)[0] for config in near} == {0, 1, 2}
    assert {config["k6"] for config in near} == {*range(10)}


def test_a_large_space_is_listed_where_its_rules_leave_little():
    knobs = [Dimension(name=f"k{n}", range=Range(low=0, high=9)) for n in range(12)]
    rules = [f"k{n} == k{n - 1}" for n in range(1, 12)]
    made = space(*knobs, constraints=rules)
    assert made.size == 10**12
    assert [config["k11"] for config in made.feasible] == list(range(10))


def test_a_sample_is_made_of_different_feasible_points():
    made = space(knob("a", *range(10)), constraints=["a % 2 == 0"])
    assert len({*made.sample(3, Random(1))}) == 3
    assert {*made.sample(99, Random(1))} == {*made.feasible}
    assert made.sample(3, Random(1)) == made.sample(3, Random(1))


def test_distance_counts_differing_knobs_first_then_steps_and_texts_have_no_order():
    made = space(knob("a", 1, 2, 4), knob("b", "x", "y", "z", when="a < 4"))
    centre = Config({"a": 1, "b": "x"})
    assert made.distance(centre, Config({"a": 2, "b": "x"})) == (1, 1)
    assert made.distance(centre, Config({"a": 1, "b": "z"})) == (1, 1)
    assert made.distance(centre, Config({"a": 2, "b": "y"})) == (2, 2)
    assert made.distance(centre, Config({"a": 4})) == (2, 2)


def test_the_words_tell_choices_conditions_and_reasons():
    mode = Dimension(name="mode", choices=("some", "all"), description="what is kept")
    made = space(mode, knob("every", 1, 2, when="mode == 'some'"), constraints=["every < 3"])
    assert made.words().splitlines() == [
        "Knobs:",
        "- mode in ['some', 'all']: what is kept",
        "- every in [1, 2]; only when mode == 'some'",
        "Constraints, all of which must hold:",
        "- rule0: every < 3",
    ]


NAMES = ("a", "b", "c")
COMPARISONS = st.sampled_from(["==", "<", "!="])
CHOICES = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)


def conditions(*names):
    """Conditions on these knobs, or none."""
    return st.none() | st.builds(
        "{} {} {}".format, st.sampled_from(names), COMPARISONS, st.integers(0, 2)
    )


@st.composite
def spaces(draw):
    dimensions = draw(
        st.permutations(
            [
                knob("a", *draw(CHOICES)),
                knob("b", *draw(CHOICES), when=draw(conditions("a"))),
                knob("c", *draw(CHOICES), when=draw(conditions("a", "b"))),
            ]
        )
    )
    constraints = draw(
        st.lists(
            st.sampled_from(["a + b <= 2", "b == c", "a != c or b == 1", "global_batch > a"]),
            max_size=2,
        )
    )
    return space(*dimensions, constraints=constraints)


@given(spaces())
@settings(deadline=None, max_examples=150)
def test_every_point_that_is_accepted_is_listed_and_accepted_unchanged(made):
    points = itertools.product(*(knob.choices for knob in made.knobs))
    names = [knob.name for knob in made.knobs]
    accepted = (made.check(dict(zip(names, point, strict=True))) for point in points)
    expected = dict.fromkeys(config for config in accepted if isinstance(config, Config))
    assert list(made.feasible) == list(expected)
    for config in made.feasible:
        assert made.check(config.values) == config
        assert made.violations(config) == ()


@given(spaces(), st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2)))
@settings(deadline=None, max_examples=100)
def test_whatever_is_accepted_is_a_feasible_point(made, candidate):
    config = made.check(candidate)
    if isinstance(config, Config):
        assert config in made.feasible
    else:
        assert all("\n" not in fault and fault for fault in config)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    )
)
@settings(deadline=None)
def test_any_answer_is_a_point_or_faults_in_words(candidate):
    made = space(knob("a", 1, 2), knob("b", 0.5, 1.5), knob("", "x", "y"))
    answer = made.check(candidate)
    assert answer in made.feasible or all(isinstance(fault, str) for fault in answer)
