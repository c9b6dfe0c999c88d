"""Objectives, limits and prices in a study file."""

import pytest

from records.codec import from_json, to_json
from records.errors import StudyError
from records.study import Environment, Objective, Study
from search.study.study_file import builtin_study, read_study_file

BASE = builtin_study(
    Environment(name="m", device="cpu", accelerator="here", world_size=4, ranks_per_node=4)
)


def read(folder, text):
    path = folder / "study.toml"
    path.write_text(text)
    return read_study_file(path, BASE)


def test_the_objective_table_lists_what_is_beside_the_main_one(tmp_path):
    study = read(
        tmp_path,
        '[objective]\nlimits = ["peak_memory < 30 GiB"]\n'
        'more = [{ expression = "gpus" }, { expression = "mfu", direction = "maximize" }]\n'
        "[environment]\naccelerator_usd_per_hour = 2.5\n",
    )
    assert study.objective == BASE.objective
    assert study.more_objectives == (
        Objective(expression="gpus"),
        Objective(expression="mfu", direction="maximize"),
    )
    assert study.limits == ("peak_memory < 30 GiB",)
    assert study.environment.accelerator_usd_per_hour == 2.5
    assert from_json(Study, to_json(study)) == study


def test_a_file_that_says_nothing_of_them_keeps_those_of_the_base(tmp_path):
    study = read(tmp_path, '[objective]\nexpression = "mfu"\n')
    assert study.objective.expression == "mfu"
    assert (study.more_objectives, study.limits) == ((), ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[objective]\nlimit = ['a < 1']",
            "[objective] unknown key 'limit'; did you mean 'limits'?",
        ),
        (
            "[objective]\nmore = [{ expresion = 'gpus' }]",
            "[objective.more] unknown key 'expresion'; did you mean 'expression'?",
        ),
        ("[objective]\nmore = 'gpus'", "more_objectives: "),
        ("[objective]\nlimits = [3]", "[objective.limits] 0: "),
        ("limits = ['a < 1']", "unknown key 'limits'"),
        ("[environment]\naccelerator_usd_per_hour = 0", "accelerator_usd_per_hour"),
    ],
)
def test_what_is_wrong_is_refused_in_the_words_of_the_file(tmp_path, text, words):
    with pytest.raises(StudyError) as refused:
        read(tmp_path, text)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
