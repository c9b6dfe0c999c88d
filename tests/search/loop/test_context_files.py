"""Contexts in study files, policies checked over them, and a real search for two of them."""

import json
from pathlib import Path

import pytest

from records.errors import StudyError
from search.study.study_file import read_study_file
from tests.support.records import study as example

TINY = Path(__file__).parents[2] / "data" / "tiny_study.toml"
SHARDS = """
def generate_config(workload, environment):
    return {"dp_shard": environment["world_size"], "micro_batch": 4}
"""
SPACE = "[space.dp_shard]\n[space.micro_batch]\n"


@pytest.fixture
def file(tmp_path):
    """Writes the tiny study with more at its end."""

    def write(more: str) -> Path:
        path = tmp_path / "study.toml"
        path.write_text(f"{TINY.read_text()}\n{more}\n")
        return path

    return write


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "shards.py"
    path.write_text(SHARDS)
    return path


def test_a_context_is_laid_over_the_studys_own(file):
    study = read_study_file(
        file(
            '[[context]]\nname = "big"\nworkload = { global_batch = 32 }\n'
            '[[context]]\nname = "llama"\nheld_out = true\n'
            '[context.workload]\nmodel = "debug"\nlayer_count = 3\n'
            "[context.environment]\nworld_size = 8\n"
        ),
        example(),
    )

    big, llama = study.contexts
    assert (big.held_out, big.workload.global_batch, big.workload.layer_count) == (False, 32, 2)
    assert big.environment == study.environment
    assert (llama.held_out, llama.workload.layer_count, llama.workload.global_batch) == (True, 3, 8)
    assert llama.workload.hidden_size != study.workload.hidden_size
    assert (llama.environment.world_size, llama.environment.ranks_per_node) == (8, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[context]\nname = 'a'", "[context] must be written [[context]]"),
        ("[[context]]\nname = 'a'\nheldout = true", "did you mean 'held_out'?"),
        ("[[context]]\nheld_out = true", "[context] needs name"),
        (
            "[[context]]\nname = 'a'\nworkload = { global_bach = 3 }",
            "[context.workload] unknown key 'global_bach'; did you mean 'global_batch'?",
        ),
        (
            "[[context]]\nname = 'a'\nenvironment = { scale_up = { bandwith_bytes_per_s = 3.0 } }",
            "did you mean 'bandwidth_bytes_per_s'?",
        ),
        ("[[context]]\nname = 'a'\nworkload = 3", "[context.workload] must be a table"),
        ("[[context]]\nname = 'tiny'", "names two contexts, or one and the study"),
    ],
)
def test_a_context_that_is_wrong_is_told_in_the_words_of_the_file(file, text, words):
    with pytest.raises(StudyError) as refused:
        read_study_file(file(text), example())

    assert words in str(refused.value)


def test_a_policy_is_checked_in_every_context_and_over_a_grid(cclsearch, file, policy):
    study = file(
        f'{SPACE}[[context]]\nname = "odd"\nheld_out = true\nworkload = {{ global_batch = 6 }}'
    )

    ended = cclsearch("policy", "check", policy, "-c", study, "--vary", "world_size=1,2")

    assert ended.code == 2
    assert ended.out.splitlines() == [
        "tiny: valid: dp_shard=2 micro_batch=4",
        "odd (held out): invalid_config: knob micro_batch is 4 (int), not one of [1, 2, 3, 6]",
        "world_size=1: valid: dp_shard=1 micro_batch=4",
        "world_size=2: valid: dp_shard=2 micro_batch=4",
    ]


def test_a_checked_policy_is_told_as_json(cclsearch, file, policy):
    ended = cclsearch("policy", "check", policy, "-c", file(SPACE), "--json")

    assert ended.code == 0
    assert json.loads(ended.out) == [
        {
            "context": "tiny",
            "held_out": False,
            "config": {"dp_shard": 2, "micro_batch": 4},
            "fault": None,
        }
    ]


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ("global_batch", "lists no values; write global_batch=16,32"),
        ("global_bach=3", "did you mean 'global_batch'?"),
        ("global_batch=x", "--vary global_batch: "),
        ("global_batch=0", "it must be at least 1"),
    ],
)
def test_values_that_cannot_be_are_one_line_errors(cclsearch, file, policy, vary, words):
    ended = cclsearch("policy", "check", policy, "-c", file(SPACE), "--vary", vary)

    assert ended.code == 2
    assert words in ended.err
    assert ended.err.startswith("error: ")


def test_a_context_in_which_nothing_is_possible_is_a_fault_of_its_own(cclsearch, file, policy):
    study = file(f"{SPACE}[[context]]\nname = 'big'\nenvironment = {{ world_size = 3 }}")

    ended = cclsearch("policy", "check", policy, "-c", study)

    assert ended.code == 2
    assert ended.out.splitlines()[1].startswith("big: invalid_config: ")


def test_a_real_search_for_two_contexts_tells_both(cclsearch, file, policy, tmp_path):
    study = file(f"{SPACE}[[context]]\nname = 'long'\nworkload = {{ sequence_length = 64 }}\n")
    text = study.read_text().replace("self_test_rounds = 1", "self_test_rounds = 0")
    text = text.replace("confirm_rounds = 2", "confirm_rounds = 0")
    study.write_text(text.replace("race_rounds = 2", "race_rounds = 0"))
    store = tmp_path / "store"

    ended = cclsearch(
        *("run", "-c", study, "--strategy", "grid", "--seed-policy", policy),
        *("--trials", 2, "--store", store),
    )
    shown = json.loads(cclsearch("trial", "show", 1, "--json", "--store", store).out)
    best = cclsearch("best", "--context", "long", "--format", "json", "--store", store)

    assert ended.code == 0, ended.err
    assert [one["name"] for one in shown["contexts"]] == ["tiny", "long"]
    tokens = [
        one["outcome"]["measurement"]["tokens_per_step"] for one in shown["outcome"]["contexts"]
    ]
    assert tokens == [8 * 32, 8 * 64]
    assert "contexts/long/rank1_trace.json" in shown["files"]
    assert json.loads(best.out).keys() == {"dp_shard", "micro_batch"}
    assert cclsearch("trace", "breakdown", "trial:1", "--store", store).code == 0
