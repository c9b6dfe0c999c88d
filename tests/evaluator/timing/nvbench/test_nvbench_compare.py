"""Two result files are compared state by state, and only what belongs together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.timing.decision import Verdict
from evaluator.timing.nvbench.compare import Filters, compare_files
from evaluator.timing.screening.decide import Reason
from evaluator.timing.screening.estimate import PRESETS
from records.errors import StudyError
from tests.support.nvbench import (
    benchmark,
    device,
    sample_reference,
    samples,
    state,
    times,
    write_result,
)

USUAL = times(1.0, 1.001, 1.002, 1.003)
FASTER = times(0.8, 0.801, 0.802, 0.803)
ONE, TWO = {"T": "I32"}, {"T": "F32"}


@pytest.fixture
def sides(tmp_path):
    return tmp_path / "ref.json", tmp_path / "cmp.json"


def compared(sides, ref, cmp, **options):
    write_result(sides[0], ref)
    write_result(sides[1], cmp)
    return compare_files(*sides, **options)


def verdicts(found):
    return [row.judgement.verdict.value for row in found.rows]


def test_a_faster_state_is_fast_and_an_equal_one_is_the_same(sides):
    found = compared(
        sides,
        [benchmark("copy", [state(USUAL, ONE), state(USUAL, TWO)])],
        [benchmark("copy", [state(USUAL, TWO), state(FASTER, ONE)])],
    )

    assert verdicts(found) == ["same", "fast"]
    assert [row.candidate.axes[0].value for row in found.rows] == ["F32", "I32"]
    assert found.warnings == ()


def test_thresholds_and_missing_clock_rates_reach_the_judgement(sides):
    slower = times(1.009, 1.010, 1.011, 1.012)
    unclocked = [times(low, low, low, low, clock_hz=None) for low in (1.0, 0.8)]
    ref = [benchmark("copy", [state(USUAL)])]

    near = [benchmark("copy", [state(slower)])]
    usual, strict = (
        compared(sides, ref, near, thresholds=PRESETS[name]) for name in ("default", "strict")
    )
    lone = [[benchmark("copy", [state(each)])] for each in unclocked]
    unconfirmed = compared(sides, *lone)

    assert verdicts(usual) == ["slow"]
    assert verdicts(strict) == ["undecided"]
    assert unconfirmed.rows[0].judgement.reason is Reason.MISSING_CLOCK_RATE


@pytest.mark.parametrize(
    ("names", "axes", "kept"),
    [
        ([], [], "copy/I32 copy/F32 fill/I32"),
        (["copy"], [], "copy/I32 copy/F32"),
        ([], ["T=I32"], "copy/I32 fill/I32"),
        (["copy", "fill"], ["T=F32", " T = I32 ", "n=2^8"], "copy/I32 fill/I32"),
        (["fill"], ["n=256"], "fill/I32"),
    ],
)
def test_filters_admit_values_as_the_file_has_them_or_as_they_are_shown(sides, names, axes, kept):
    pow2 = [{"name": "T"}, {"name": "n", "flags": "pow2"}]
    states = [state(USUAL, {"T": "I32"}), state(USUAL, {"T": "F32"})]
    for each, size in zip(states, ("256", "512"), strict=True):
        each["axis_values"].append({"name": "n", "type": "int64", "value": size})
    both = [benchmark("copy", states) | {"axes": pow2}, benchmark("fill", states[:1])]
    both[1]["axes"] = pow2

    found = compared(sides, both, both, filters=Filters.of(names, axes))

    rows = [
        f"{s.benchmark}/{row.candidate.axes[0].value}" for s in found.sections for row in s.rows
    ]
    assert rows == kept.split()


@pytest.mark.parametrize(
    ("names", "axes", "message"),
    [
        (["move"], [], "-b 'move' is in neither file; known: 'copy'"),
        ([], ["U=1"], "-a 'U' is in neither file; known: 'T'"),
        ([], ["T=I32", "T=I99"], "-a T= 'I99' is in neither file; known: 'I32'"),
        ([], ["T"], "-a 'T' is not a filter; write AXIS=VALUE"),
        ([], ["T="], "is not a filter"),
        ([], ["=I32"], "is not a filter"),
    ],
)
def test_what_a_filter_names_must_be_there(sides, names, axes, message):
    copy = [benchmark("copy", [state(USUAL, ONE)])]
    with pytest.raises(StudyError, match=message):
        compared(sides, copy, copy, filters=Filters.of(names, axes))


def test_files_without_a_common_state_are_an_error(sides):
    for ref, cmp in (([], []), ([benchmark("old", [])], [benchmark("new", [])])):
        with pytest.raises(StudyError, match="no state in common"):
            compared(sides, ref, cmp)


def two_devices(path, names, **runs):
    states = [state(summaries, device=int(number[1:])) for number, summaries in runs.items()]
    devices = [device(number, name) for number, name in enumerate(names)]
    return write_result(path, [benchmark("copy", states, devices=[0, 1])], devices)


def test_devices_are_paired_by_position(sides):
    for path in sides:
        two_devices(path, ["A", "A"], d0=USUAL, d1=FASTER)

    found = compare_files(*sides)

    assert verdicts(found) == ["same", "same"]
    assert [(s.reference_device.id, s.candidate_device.id) for s in found.sections] == [
        (0, 0),
        (1, 1),
    ]


def test_devices_that_are_not_as_many_or_not_described_are_an_error(sides):
    two_devices(sides[0], ["A", "A"], d0=USUAL, d1=USUAL)
    two_devices(sides[1], ["A"], d0=USUAL, d1=USUAL)

    with pytest.raises(StudyError, match="2 devices on one side and 1 on the other"):
        compare_files(*sides)
    with pytest.raises(StudyError, match="ran on device 1, which it lacks"):
        compare_files(sides[1], sides[1])


def test_a_benchmark_without_devices_is_compared_too(sides):
    run = state(USUAL) | {"device": None, "name": "host"}
    found = compared(sides, [benchmark("h", [run], [])], [benchmark("h", [run], [])])

    assert verdicts(found) == ["same"]
    assert found.sections[0].reference_device is None


def test_different_devices_are_compared_with_a_warning(sides):
    two_devices(sides[0], ["A", "A"], d0=USUAL, d1=USUAL)
    two_devices(sides[1], ["A", "B"], d0=USUAL, d1=USUAL)

    assert [w.endswith("devices differ in name") for w in compare_files(*sides).warnings] == [True]


def test_raw_samples_take_part_and_bad_ones_are_no_evidence(sides):
    steady = [1.0, 1.0, 1.1, 1.1] * 10

    def run(path, count=40):
        told = samples(path, 0, steady) if count == 40 else sample_reference("cut.bin", count)
        (path.parent / "cut.bin").write_bytes(b"\x00" * 8)
        return state([*times(1.0, 1.0, 1.05, 1.1, clock_hz=None), told])

    good = [[benchmark("copy", [run(path)])] for path in sides]
    bad = [benchmark("copy", [run(sides[1], 41)])]

    sampled = compared(sides, *good)
    cut = compared(sides, good[0], bad)

    assert sampled.rows[0].judgement.reason is Reason.BULK_TIME_SAME_WITHOUT_CYCLES
    assert cut.rows[0].judgement.verdict is Verdict.UNDECIDED
    assert cut.rows[0].judgement.reason is Reason.BULK_TIME_DATA_UNUSABLE
    assert cut.warnings == (f"{sides[1]}: 'cut.bin' holds 8 bytes, which are not 41 samples",)


def test_folders_are_paired_by_the_names_of_their_files(tmp_path):
    ref, cmp = tmp_path / "ref", tmp_path / "cmp"
    for folder, names in ((ref, "abd"), (cmp, "acd")):
        folder.mkdir()
        for name in names:
            write_result(folder / f"{name}.json", [benchmark(name, [state(USUAL)])])
    (cmp / "d.json").write_text("")
    (cmp / "b.txt").write_text("{}")

    found = compare_files(ref, cmp)

    assert [section.benchmark for section in found.sections] == ["a"]
    assert [each.split()[0] for each in found.warnings] == ["b.json", "c.json", "d.json"]


@pytest.mark.parametrize("content", [None, b""])
def test_a_raw_file_that_is_empty_or_gone_does_not_let_same_pass(sides, content):
    def run(path):
        told = samples(path, 0, [1.0, 1.01] * 20)
        return state([*times(1.0, 1.0, 1.05, 1.1, clock_hz=None), told])

    for path in sides:
        write_result(path, [benchmark("copy", [run(path)])])
    (raw,) = sides[1].parent.rglob("cmp.json-*/*")
    raw.unlink()
    if content is not None:
        raw.write_bytes(content)

    (row,) = compare_files(*sides).rows

    assert row.judgement.verdict is Verdict.UNDECIDED
    assert row.judgement.reason is Reason.BULK_TIME_DATA_UNUSABLE


def test_a_folder_is_not_compared_with_a_file_or_with_an_empty_one(tmp_path):
    path = write_result(tmp_path / "a.json", [])
    (tmp_path / "empty").mkdir()

    with pytest.raises(StudyError, match="give two files or two folders"):
        compare_files(tmp_path, path)
    with pytest.raises(StudyError, match=r"no \.json file of the same name"):
        compare_files(tmp_path, tmp_path / "empty")


def test_equal_states_are_paired_by_their_order(sides):
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
def test_states_that_are_not_as_many_on_both_sides_are_an_error(sides, cmp):
    ref = [benchmark("copy", [state(USUAL, ONE)])]

    with pytest.raises(StudyError, match=r"cmp\.json.*; measure the same on both sides"):
        compared(sides, ref, [benchmark("copy", cmp)])


def test_states_that_a_filter_leaves_out_and_the_order_of_axes_do_not_matter(sides):
    run = state(USUAL, {"a": "1", "b": "2"})
    turned = run | {"axis_values": list(reversed(run["axis_values"]))}
    other = state(USUAL, {"a": "3", "b": "2"})
    ref, cmp = [benchmark("copy", [run])], [benchmark("copy", [turned, other])]

    assert verdicts(compared(sides, ref, cmp, filters=Filters.of([], ["a=1"]))) == ["same"]


def test_the_same_state_name_at_other_axis_values_is_another_state(sides):
    moved = state(USUAL, {"n": "2^8"}) | {"name": "Device=0"}
    other = state(USUAL, {"n": "2^9"}) | {"name": "Device=0"}

    with pytest.raises(StudyError, match="state ''"):
        compared(sides, [benchmark("copy", [moved])], [benchmark("copy", [other])])


def test_a_benchmark_of_one_file_only_is_left_out_with_a_warning(sides):
    copy = benchmark("copy", [state(USUAL)])
    found = compared(sides, [copy, benchmark("old", [])], [benchmark("new", []), copy])

    assert verdicts(found) == ["same"]
    assert [(str(sides[1]) in each, "'new'" in each) for each in found.warnings] == [
        (True, True),
        (False, False),
    ]


KEYS = st.lists(st.sampled_from(["I32", "F32", "F64"]), min_size=1, max_size=8)


@settings(max_examples=40)
@given(KEYS, st.randoms(use_true_random=False))
def test_each_state_finds_its_own_partner_whatever_the_order(sides, keys, order):
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
