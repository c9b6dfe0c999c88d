"""Thresholds come from presets and TOML; what is not understood is an error that says so."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.screening.estimate import (
    PRESETS,
    Bulk,
    ClearGap,
    RareSupport,
    Same,
    Thresholds,
    read_thresholds,
    to_toml,
)
from records.errors import StudyError

RATIO = st.floats(0, 1e300)
SHARE = st.floats(0, 1)
ANY_THRESHOLDS = st.builds(
    Thresholds,
    clear_gap=st.builds(ClearGap, relative=RATIO),
    same=st.builds(
        Same,
        center_relative=RATIO,
        overlap_fraction=SHARE,
        relative_dispersion_ceiling=RATIO,
    ),
    bulk=st.builds(
        Bulk,
        sample_coverage=SHARE,
        support_coverage=SHARE,
        rare_support=st.builds(
            RareSupport, sample_fraction=SHARE, max_removed_sample_fraction=SHARE
        ),
    ),
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "thresholds: version: Field required"),
        ("version = 2", "thresholds: version: Input should be 1"),
        ("version = 1\n[noise]", "thresholds: noise: Unexpected keyword argument"),
        (
            "version = 1\n[bulk]\ncoverage = 1",
            "thresholds: bulk.coverage: Unexpected keyword argument",
        ),
        (
            "version = 1\n[clear_gap.relative]\nx = 1",
            "thresholds: clear_gap.relative: Input should be a valid number",
        ),
        (
            "version = 1\n[bulk]\nsample_coverage = 1.5",
            "thresholds: bulk.sample_coverage: Input should be less than or equal to 1",
        ),
        (
            "version = 1\n[clear_gap]\nrelative = '0.1'",
            "thresholds: clear_gap.relative: Input should be a valid number",
        ),
        (
            "version = 1\npreset.name = 'loose'",
            "thresholds: preset.name: Input should be 'default', 'strict' or 'permissive'",
        ),
        ("version = 1\npreset = 'strict'", "thresholds: preset: Input should be an object"),
        (
            "version = 1\n[preset]\nname = 'strict'\nbase = 1",
            "thresholds: preset.base: Unexpected keyword argument",
        ),
        ("version = 1\nclear_gap = 0.1", "thresholds: clear_gap: Input should be an object"),
        ("version = 1\n[[bulk]]", "thresholds: bulk: Input should be an object"),
        (
            "version = 1\n[bulk]\nrare_support = 0.1",
            "thresholds: bulk.rare_support: Input should be an object",
        ),
    ],
)
def test_a_document_that_is_not_understood_is_an_error(text: str, says: str) -> None:
    with pytest.raises(StudyError) as error:
        read_thresholds(text)

    assert str(error.value) == says


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-0.1", "true", "[]", "1" + "0" * 400])
def test_a_limit_that_is_no_usable_number_is_an_error(value: str) -> None:
    with pytest.raises(StudyError, match=r"same\.center_relative: Input should be"):
        read_thresholds(f"version = 1\n[same]\ncenter_relative = {value}")


def test_text_that_is_not_toml_is_an_error() -> None:
    with pytest.raises(StudyError, match="thresholds: cannot be read as TOML"):
        read_thresholds("version =")


def test_tables_nested_without_end_are_an_error() -> None:
    with pytest.raises(StudyError):
        read_thresholds("version = " + "[" * 100_000)


def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"limits\.toml: cannot be read"):
        read_thresholds(tmp_path / "limits.toml")


def test_an_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("version = 3", encoding="utf-8")

    with pytest.raises(StudyError, match=r"limits\.toml: version: Input should be 1"):
        read_thresholds(path)


def test_an_unknown_preset_is_an_error_without_any_document() -> None:
    with pytest.raises(StudyError, match="preset = 'loose' is unknown; use one of default"):
        read_thresholds(preset="loose")


def test_nothing_asked_is_the_default() -> None:
    assert read_thresholds() == read_thresholds("version = 1") == PRESETS["default"]


def test_the_document_names_the_preset_when_nobody_else_does() -> None:
    assert read_thresholds("version = 1\npreset.name = 'strict'") == PRESETS["strict"]


def test_a_preset_asked_for_comes_before_the_one_in_the_document() -> None:
    text = "version = 1\npreset.name = 'strict'"

    assert read_thresholds(text, "permissive") == PRESETS["permissive"]


def test_a_wrong_preset_in_the_document_is_an_error_even_when_another_is_asked_for() -> None:
    with pytest.raises(StudyError):
        read_thresholds("version = 1\npreset.name = 'loose'", "permissive")


def test_a_value_in_the_document_comes_before_every_preset() -> None:
    text = "version = 1\npreset.name = 'strict'\n[bulk.rare_support]\nsample_fraction = 0.5"

    found = read_thresholds(text, "permissive")

    assert found.bulk.rare_support.sample_fraction == 0.5
    assert found.bulk.rare_support.max_removed_sample_fraction == 0.02
    assert found.bulk.sample_coverage == PRESETS["permissive"].bulk.sample_coverage
    assert found.same == PRESETS["permissive"].same


def test_integers_are_numbers_too() -> None:
    found = read_thresholds("version = 1\n[bulk]\nsample_coverage = 1\nsupport_coverage = 0")

    assert (found.bulk.sample_coverage, found.bulk.support_coverage) == (1.0, 0.0)


def test_the_default_as_toml_is_what_a_user_would_write() -> None:
    assert to_toml(PRESETS["default"]) == (
        "version = 1\n"
        "\n[clear_gap]\nrelative = 0.005\n"
        "\n[same]\ncenter_relative = 0.005\noverlap_fraction = 0.5\n"
        "relative_dispersion_ceiling = 0.02\n"
        "\n[bulk]\nsample_coverage = 0.97\nsupport_coverage = 0.8\n"
        "\n[bulk.rare_support]\nsample_fraction = 0.001\nmax_removed_sample_fraction = 0.01\n"
    )


@given(ANY_THRESHOLDS, st.sampled_from([None, *PRESETS]))
def test_thresholds_written_as_toml_read_back_equal_over_any_preset(
    thresholds: Thresholds, preset: str | None
) -> None:
    assert read_thresholds(to_toml(thresholds), preset) == thresholds


@given(st.text())
def test_any_text_is_thresholds_or_an_error_of_ours(text: str) -> None:
    with pytest.raises(StudyError):
        read_thresholds(text)
