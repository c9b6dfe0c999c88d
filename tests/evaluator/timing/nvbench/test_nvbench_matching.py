"""Runs of the same work find each other in two result files, whatever their order."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluator.timing.nvbench.compare import ComparedFiles, Filters, compare_files
from records.errors import StudyError
from tests.support.nvbench import Json, benchmark, state, times, write_result

USUAL = times(1.0, 1.001, 1.002, 1.003)
FASTER = times(0.8, 0.801, 0.802, 0.803)
ONE, TWO = {"T": "I32"}, {"T": "F32"}


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "ref.json", tmp_path / "cmp.json"


def compared(
    sides: tuple[Path, Path], ref: Sequence[Json], cmp: Sequence[Json], **options: object
) -> ComparedFiles:
    write_result(sides[0], ref)
    write_result(sides[1], cmp)
    return compare_files(*sides, **options)


def verdicts(found: ComparedFiles) -> list[str]:
    return [row.judgement.verdict.value for row in found.rows]


def test_equal_states_are_paired_by_their_order(sides: tuple[Path, Path]):
    found = compared(
        sides,
        [benchmark("copy", [state(USUAL, ONE), state(FASTER, ONE), state(USUAL, TWO)])],
        [benchmark("copy", [state(USUAL, ONE), state(USUAL, TWO), state(FASTER, ONE)])],
    )

    places = [(row.occurrence, row.occurrence_count) for row in found.rows]
    assert verdicts(found) == ["same", "same", "same"]
    assert places == [(0, 2), (0, 1), (1, 2)]


@pytest.mark.parametrize(
    "cmp", [[state(USUAL, ONE)] * 2, [state(USUAL, TWO)], [state(USUAL, ONE), state(USUAL, TWO)]]
)
def test_states_that_are_not_as_many_on_both_sides_are_an_error(
    sides: tuple[Path, Path], cmp: list[Json]
):
    ref = [benchmark("copy", [state(USUAL, ONE)])]

    with pytest.raises(StudyError, match="measure the same on both sides") as caught:
        compared(sides, ref, [benchmark("copy", cmp)])

    assert "cmp.json" in str(caught.value)


def test_states_that_a_filter_leaves_out_need_no_partner(sides: tuple[Path, Path]):
    found = compared(
        sides,
        [benchmark("copy", [state(USUAL, ONE)])],
        [benchmark("copy", [state(USUAL, ONE), state(USUAL, TWO)])],
        filters=Filters.of([("axis", "T=I32")]),
    )

    assert verdicts(found) == ["same"]


def test_the_same_state_name_at_other_axis_values_is_another_state(sides: tuple[Path, Path]):
    moved = state(USUAL, {"n": "2^8"}) | {"name": "Device=0"}
    other = state(USUAL, {"n": "2^9"}) | {"name": "Device=0"}

    with pytest.raises(StudyError, match="state ''"):
        compared(sides, [benchmark("copy", [moved])], [benchmark("copy", [other])])


def test_the_order_of_axes_does_not_matter(sides: tuple[Path, Path]):
    run = state(USUAL, {"a": "1", "b": "2"})
    turned = run | {"axis_values": list(reversed(run["axis_values"]))}

    assert verdicts(compared(sides, [benchmark("copy", [run])], [benchmark("copy", [turned])])) == [
        "same"
    ]


def test_a_benchmark_of_one_file_only_is_left_out_with_a_warning(sides: tuple[Path, Path]):
    copy = benchmark("copy", [state(USUAL)])
    found = compared(sides, [copy, benchmark("old", [])], [benchmark("new", []), copy])

    assert verdicts(found) == ["same"]
    assert [(str(sides[1]) in each, "'new'" in each) for each in found.warnings] == [
        (True, True),
        (False, False),
    ]


KEYS = st.lists(st.sampled_from(["I32", "F32", "F64"]), min_size=1, max_size=8)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KEYS, st.randoms(use_true_random=False))
def test_each_state_finds_its_own_partner_whatever_the_order(
    sides: tuple[Path, Path], keys: list[str], order: object
):
    shuffled = list(keys)
    order.shuffle(shuffled)
    ref, cmp = (
        [state(times(*[place + 1.0] * 4), {"T": key}) for place, key in enumerate(among)]
        for among in (keys, shuffled)
    )

    found = compared(sides, [benchmark("copy", ref)], [benchmark("copy", cmp)])

    paired = [(row.reference, row.candidate) for row in found.rows]
    assert [one.key for one, _ in paired] == [other.key for _, other in paired]
    assert sorted(one.summary.median for one, _ in paired) == [
        place + 1.0 for place in range(len(keys))
    ]
    for key in set(keys):
        own = [one.summary.median for one, _ in paired if one.axes[0].value == key]
        assert own == sorted(own)
