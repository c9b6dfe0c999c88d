"""Recorded flags: what a framework's parser would refuse, told without the framework."""

import pytest

from evaluator.recipes.frameworks import flags as flags_module
from evaluator.recipes.frameworks.flags import Flag, Flags, recorded_versions, write_flags
from records.errors import StudyError


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Records the flags of a framework `f`; `style` is how it spells them."""
    (tmp_path / "schemas").mkdir()
    monkeypatch.setattr(flags_module, "folder_of", lambda _: tmp_path)
    flags_module._document.cache_clear()
    flags_module._spellings.cache_clear()

    def record(version="1.0", *, style="dashes", **flags):
        dashed = {f"--{name.replace('_', '-')}": flag for name, flag in flags.items()}
        text = write_flags("f", version, dashed if style == "dashes" else flags, style)
        (tmp_path / "schemas" / f"f-{version}.json").write_text(text, encoding="utf-8")
        return Flags.of("f", version)[0]

    return record


@pytest.fixture
def flags(recorded):
    return recorded(
        tp_size=Flag(takes="int", default=1, also=("-tp",)),
        tp_size_limit=Flag(takes="int"),
        rate=Flag(takes="float"),
        mode=Flag(choices=("auto", "full"), default="auto"),
        name=Flag(),
        fast=Flag(takes="switch", negative="--no-fast"),
        cache=Flag(takes="bool"),
        sizes=Flag(takes="many"),
    )


@pytest.mark.parametrize(
    "line",
    [
        "--tp-size 2",
        "--tp-size=2",
        "--tp_size 2",
        "-tp 2",
        "--tp-size -1",
        "--rate -.5 --rate 1e-4 --rate=-1",
        "--mode full",
        "--fast --no-fast",
        "--cache --cache true",
        "--sizes 1 2 3 --name x",
        "--name=-x",
        "positional --name x",
    ],
)
def test_what_the_parser_takes_has_no_fault(flags, line):
    assert list(flags.faults(line.split())) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("--tp-siz 2", "f 1.0 has no '--tp-siz'; did you mean --tp-size?"),
        ("--quiet 2", "f 1.0 has no '--quiet'"),
        ("--tp-size two", "--tp-size takes a whole number, not 'two'"),
        ("--tp-size 1.5", "--tp-size takes a whole number, not '1.5'"),
        ("--rate fast", "--rate takes a number, not 'fast'"),
        ("--mode none", "--mode is one of auto, full, not 'none'"),
        ("--name", "--name takes a value"),
        ("--name --fast", "--name takes a value"),
        ("--fast=true", "--fast takes no value"),
        ("-x", "f 1.0 has no '-x'"),
    ],
)
def test_what_the_parser_refuses_is_named(flags, line, fault):
    assert list(flags.faults(line.split())) == [fault]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("-tp 2 x", [("--tp-size", "2", ("-tp", "2")), ("x", None, ("x",))]),
        ("--no-fast y", [("--fast", "false", ("--no-fast",)), ("y", None, ("y",))]),
        ("--sizes 1 -2 --", [("--sizes", "1 -2", ("--sizes", "1", "-2")), ("--", None, ("--",))]),
        ("--other=1 a=b", [("--other", "1", ("--other=1",)), ("a=b", "b", ("a=b",))]),
        ("--other 1", [("--other", None, ("--other",)), ("1", None, ("1",))]),
    ],
)  # fmt: skip
def test_a_line_is_split_into_flags_with_all_of_their_words(flags, line, parts):
    found = list(flags.split(line.split()))

    assert found == parts
    assert [word for _, _, words in found for word in words] == line.split()


def test_a_framework_may_spell_its_flags_as_pairs(recorded):
    flags = recorded(style="pairs", ici_tensor=Flag(takes="int"), remat=Flag(choices=("full",)))

    assert list(flags.faults(["base.yml", "ici_tensor=2", "remat=full"])) == []
    assert list(flags.faults(["ici_tenso=2"])) == [
        "f 1.0 has no 'ici_tenso'; did you mean ici_tensor?"
    ]
    assert list(flags.faults(["remat=none"])) == ["remat is one of full, not 'none'"]


def test_versions_are_listed_by_their_numbers(recorded):
    for version in ("0.10.0", "0.2.2", "0.9"):
        recorded(version)

    assert recorded_versions("f") == ["0.2.2", "0.9", "0.10.0"]


@pytest.mark.parametrize(
    ("version", "taken"),
    [("0.9", "0.9"), (None, "0.10.0"), ("0.9.7", "0.9"), ("0.1", "0.2.2"), ("2.0", "0.10.0")],
)
def test_flags_of_a_version_that_is_not_recorded_are_those_of_the_nearest(recorded, version, taken):
    for each in ("0.10.0", "0.2.2", "0.9"):
        recorded(each)

    found, caveat = Flags.of("f", version)

    assert found.version == taken
    is_recorded = version in (None, taken)
    assert (caveat is None) == is_recorded
    assert is_recorded or f"f {version} is not one of the versions" in str(caveat)


@pytest.mark.usefixtures("recorded")
def test_a_framework_without_recorded_flags_is_refused():
    with pytest.raises(StudyError, match="no flags of f are recorded"):
        Flags.of("f", None)


def test_a_recording_is_written_a_line_a_flag_and_read_back(flags):
    text = write_flags("f", "1.0", dict(flags.flags), "dashes")

    assert text.count("\n") == len(flags.flags) + 2
    assert '"--tp-size": {"takes":"int","default":1,"also":["-tp"]}' in text
