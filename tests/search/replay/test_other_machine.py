"""The policies of a study asked elsewhere: which adapt, which are fixed, which fail."""

import json
from contextlib import closing
from dataclasses import replace

import pytest

from records.store.store import Store
from records.study import Command, Dimension, Environment, Launch
from records.trial import Policy
from search.replay.other_machine import as_given
from search.study.spaces import completed
from search.study.study_file import builtin_study
from tests.support import records as testing

PROGRAM = "def generate_config(workload, environment):\n    return {{'n': {}}}\n"
BY_RANKS = PROGRAM.format("environment['world_size']")
FIXED = PROGRAM.format("4")
BY_BATCH = PROGRAM.format("workload['global_batch']")
SCRIPT = Command(run=("true",), rank_count="1")
STUDY = "20260101-000000-aaaa"


@pytest.fixture
def policies(tmp_path, cclsearch):
    """Asks the policies of a study of three trials, the last with the policy of the second."""
    trials = [
        replace(testing.trial(n, 0.5 - n / 10, {"n": 4}), policy=Policy(source=text, author="x"))
        for n, text in enumerate((BY_RANKS, FIXED, FIXED, BY_BATCH))
    ]
    study = testing.study(Dimension(name="n", choices=(2, 4, 8)))
    study = replace(study, launch=Launch(recipe="command"), command=SCRIPT)
    with closing(Store(tmp_path / "store")) as store:
        store.add_study(STUDY, study, "test", trials)

    def ask(*words):
        return cclsearch("replay", "--mode", "policy", *words, "--store", tmp_path / "store")

    return ask


def test_each_policy_is_asked_once_and_told_how_it_takes_to_other_places(policies):
    told = json.loads(policies("--vary", "world_size=2,8", "--json").out)
    kinds = {tuple(each["trials"]): each["kind"] for each in told["policies"]}
    assert kinds == {(0,): "adapts", (1, 2): "fixed", (3,): "fails"}
    assert (told["adapts"], told["fixed"], told["fails"]) == (1, 1, 1)
    adapting = told["policies"][0]["places"]
    assert [(place["place"], place["config"]) for place in adapting] == [
        ("example", {"n": 4}),
        ("world_size=2", {"n": 2}),
        ("world_size=8", {"n": 8}),
    ]
    assert [place["same_as_recorded"] for place in adapting] == [True, False, False]


def test_a_person_reads_what_differs_and_why_nothing_is_valid(policies):
    ended = policies("--vary", "world_size=2")
    assert "trial 0, by x: adapts\n  recorded: n=4\n  example: the same" in ended.out
    assert "  world_size=2: n=2\n" in ended.out
    assert "none, invalid_config: knob n is 16 (int), not one of [2, 4, 8]" in ended.out
    assert "1 of 3 adapt to the context" in ended.out
    assert "1 of 3 have no valid configuration in some context" in ended.out


@pytest.mark.parametrize(("which", "code"), [("1", 0), ("best", 7), ("all", 7)])
def test_strict_fails_where_a_policy_gives_nothing_valid(policies, which, code):
    assert policies("--trial", which, "--strict").code == code


def test_a_study_file_is_another_place(policies, tmp_path):
    path = tmp_path / "other.toml"
    path.write_text("[environment]\nworld_size = 8\nranks_per_node = 8\n", encoding="utf-8")
    told = json.loads(policies("--trial", "0", "-c", path, "--json").out)
    assert told["policies"][0]["places"][0]["config"] == {"n": 8}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--trial", "9"), "has no trial 9; see"),
        (("--trial", "worst"), "--trial 'worst' is not a trial"),
        (("--rounds", "3"), "--rounds needs --mode measure, not policy"),
        (("--vary", "ranks=3"), "unknown field 'ranks'"),
    ],
)
def test_what_is_asked_wrongly_is_told_in_one_line(policies, words, told):
    ended = policies(*words)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err


def test_choices_that_the_recipe_added_for_its_own_sizes_are_added_anew_elsewhere():
    machine = Environment(
        name="bench", device="cpu", accelerator="cpu", world_size=4, ranks_per_node=4
    )
    recorded = completed(builtin_study(machine))
    given = as_given(recorded)
    larger = completed(replace(given, environment=replace(machine, world_size=8)))
    choices = {dimension.name: dimension.choices for dimension in larger.space.dimensions}
    assert 8 in choices["dp_shard"]
    assert choices["activation_checkpointing"] == ("none", "full")
    assert completed(given).space == recorded.space
