"""Study files of collective setups: messages in tables of their own, the rest made for them."""

from dataclasses import replace
from pathlib import Path

import pytest

from policies.contract import workload_fields
from records.errors import StudyError
from records.study import Environment
from records.workload import Message
from search.study import study_file as collective_study
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study, read_study_file

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "collectives" / "study.toml"
BASE = builtin_study(
    Environment(name="m", device="cpu", accelerator="here", world_size=4, ranks_per_node=4)
)
ASKED = '[launch]\nrecipe = "collectives"\n'
MESSAGE = '[[message]]\ncollective = "all_gather"\nsize_bytes = 64\n'


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch):
    monkeypatch.setattr(collective_study, "absence", lambda _adapter: "not here")


def read(folder, text, base=BASE):
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return read_study_file(path, base)


def refusal(folder, text):
    with pytest.raises(StudyError) as refused:
        read(folder, text)
    return str(refused.value).removeprefix(f"{folder / 'study.toml'}: ")


def knobs(study):
    return [dimension.name for dimension in study.space.dimensions]


def test_the_recipe_alone_makes_a_study(tmp_path):
    study = completed(read(tmp_path, ASKED))

    assert study.workload.phase == "communication"
    assert study.workload.tokens_per_step == 0
    assert {message.collective for message in study.workload.messages} == {"all_reduce"}
    assert knobs(study) == ["in_flight", "fusion_bytes", "chunk_count"]
    assert (study.seed_policy, study.objective.expression) == ("first", "step_time")
    assert (study.measure.profiled_steps, study.launch.memory_budget_bytes) == (0, None)
    assert dict(space_of(study).feasible[0].values) == {
        "in_flight": 1,
        "fusion_bytes": 0,
        "chunk_count": 1,
    }


def test_with_mpi_its_algorithms_are_searched_beside_gloo(tmp_path, monkeypatch):
    monkeypatch.setattr(collective_study, "absence", lambda _adapter: None)

    study = completed(read(tmp_path, ASKED))

    assert study.space.dimensions[0].choices == ("c10d", "mpi")
    assert {"ompi_allreduce_algorithm", "ompi_single_copy"} <= set(knobs(study))
    assert space_of(study).feasible[0].values["comm_adapter"] == "c10d"


@pytest.mark.parametrize("asked", [ASKED, f'{ASKED}[environment]\ndevice = "cuda"\n'])
def test_on_gpus_nccl_is_searched(tmp_path, asked):
    machine = replace(BASE.environment, device="cuda" if asked == ASKED else "cpu")

    study = completed(read(tmp_path, asked, builtin_study(machine)))

    assert {"nccl_algo", "nccl_proto"} <= set(knobs(study))
    assert study.space.defaults["backend"] == "nccl"
    assert len(space_of(study).feasible) > 100


@pytest.mark.parametrize("workload", ["", '[workload]\nname = "mine"\n'])
@pytest.mark.parametrize("messages_first", [True, False])
def test_messages_replace_those_of_the_recipe(tmp_path, workload, messages_first):
    second = '[[message]]\ncollective = "barrier"\ncount = 2\n'
    parts = (MESSAGE, second, workload) if messages_first else (workload, MESSAGE, second)

    study = read(tmp_path, "".join((*parts, ASKED)))

    assert study.workload.messages == (
        Message(collective="all_gather", size_bytes=64),
        Message(collective="barrier", count=2),
    )
    assert study.workload.name == ("mine" if workload else "all-reduces")


def test_a_policy_sees_the_messages(tmp_path):
    fields = workload_fields(read(tmp_path, ASKED + MESSAGE).workload)

    assert fields["messages"][0]["size_bytes"] == 64


def test_a_knob_in_the_file_replaces_all_of_the_recipe(tmp_path):
    study = completed(read(tmp_path, f"{ASKED}[space.in_flight]\n"))

    assert knobs(study) == ["in_flight"]
    assert study.space.dimensions[0].choices == (1, 2, 4)


def test_a_file_laid_over_such_a_study_keeps_it(tmp_path):
    once = read(tmp_path, ASKED + MESSAGE)

    twice = read(tmp_path, f"{ASKED}[budget]\ntrials = 3\n", once)

    assert twice == replace(once, budget=replace(once.budget, trials=3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{ASKED}[[message]]\ncollective = 'all_reduce'\nsize_byte = 8",
            "[message.0] unknown key 'size_byte'; did you mean 'size_bytes'?",
        ),
        (
            f"{ASKED}{MESSAGE}[[message]]\ncollective = 'all_redcue'\nsize_bytes = 8",
            "[message.1] collective: Input should be 'all_reduce'",
        ),
        (f"{ASKED}[[message]]\nsize_bytes = 8", "[message.0] needs collective"),
        (f"{ASKED}{MESSAGE}count = 0", "[[message]] count is 0; it must be at least 1"),
        (
            f"{ASKED}{MESSAGE}reduce_op = 'avg'\ndtype = 'int32'",
            "[[message]] reduce_op avg has no meaning with whole numbers",
        ),
        (f"{ASKED}[message]\nsize_bytes = 8", "[message] must be written [[message]], once for"),
        (f"{ASKED}[[messages]]", "unknown key 'messages'; did you mean 'message'?"),
        (MESSAGE, "[workload] phase 'training' exchanges no messages of its own; leave [[message"),
    ],
)
def test_what_is_wrong_with_a_message_is_told_in_the_words_of_the_file(tmp_path, text, message):
    assert refusal(tmp_path, text).startswith(message)


def test_messages_alone_do_not_make_another_recipe_exchange_them(tmp_path):
    study = read(tmp_path, f'[workload]\nphase = "communication"\n{MESSAGE}')

    with pytest.raises(StudyError, match='give recipe = "collectives" under'):
        completed(study)


def test_the_example_of_the_documents_searches_every_setup_once():
    study = completed(read_study_file(EXAMPLE, BASE))

    assert len(space_of(study).feasible) == 2 * (6 + 4)
