"""What the model is told."""

import difflib
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.objective import scoring, scoring_of
from policies.space import Space
from records.study import Dimension, Range, SearchSpace, Study
from records.trial import Config, FailureKind, History, RaceResult, Stage
from search.llm.messages import Prompt, estimated_tokens
from search.llm.prompt import TURN_TOKENS, PromptWriter
from search.loop.learned import LearnedConstraint
from search.strategies.base import untried
from tests.support.search import (
    LEARNED,
    SPACE,
    STUDY,
    candidates,
    failed,
    measured,
    out_of_memory,
    past,
    trial,
)

GOLDEN = Path(__file__).parent / "golden"
RULES = "The policy runs in a sandbox without files or network."
FIRST, SECOND, THIRD = SPACE.feasible[1], SPACE.feasible[2], SPACE.feasible[3]


def writer(study: Study = STUDY) -> PromptWriter:
    return PromptWriter(SPACE, scoring_of(study), sandbox_rules=RULES)


def write(
    history: History, study: Study = STUDY, learned: tuple[LearnedConstraint, ...] = ()
) -> Prompt:
    return writer(study).write(
        study,
        history,
        untried(SPACE, history),
        candidates=candidates(history),
        learned=learned,
    )


def between(text: str, start: str, end: str) -> str:
    return text.split(start)[1].split(end)[0]


@pytest.mark.parametrize(("number", "tokens"), [(1, 2802), (10, 5070), (200, 17856)])
def test_the_model_sees_what_the_golden_file_says(number: int, tokens: int, tmp_path: Path) -> None:
    prompt = write(past(number - 1), learned=LEARNED if number > 24 else ())
    seen = f"{prompt.system}\n---- task ----\n\n{prompt.task}\n---- turn ----\n\n{prompt.turn}"
    golden = GOLDEN / f"prompt_trial_{number:03}.md"
    actual = tmp_path / golden.name
    actual.write_text(seen, encoding="utf-8")
    expected = golden.read_text(encoding="utf-8")

    difference = difflib.unified_diff(
        expected.splitlines(), seen.splitlines(), str(golden), str(actual), lineterm=""
    )
    assert seen == expected, f"to accept: cp {actual} {golden}\n" + "\n".join(difference)
    assert estimated_tokens(seen) == tokens
    assert estimated_tokens(prompt.turn) <= TURN_TOKENS


def test_the_unchanging_part_does_not_change_with_the_history() -> None:
    first, later = write(History()), write(past(30))

    assert (first.system, first.task) == (later.system, later.task)
    assert first.turn != later.turn


def test_every_field_is_shown_as_a_policy_reads_it() -> None:
    task = write(History()).task

    assert "workload['layer_count'] == 32" in task
    assert "expert_count" not in task
    assert "messages" not in task
    assert "== None" not in task
    assert "environment['scale_out']['latency_s'] == 5e-06" in task
    assert "environment['software']['torch'] == '2.13.0'" in task


def test_every_trial_has_its_row_newest_first() -> None:
    turn = write(past(199)).turn

    table = between(turn, "## Trials, newest first", "## Candidates of")
    rows = [line for line in table.splitlines() if line.startswith("#")]
    assert [int(line.split()[0][1:]) for line in rows] == list(range(198, -1, -1))


def test_the_best_is_told_with_names_and_in_the_table_without() -> None:
    turn = write(History((trial(0, FIRST, measured(1.25)),))).turn

    settings = "bucket_mib=25 dp=4 micro_batch=1 pp=4 recompute=False schedule=interleaved tp=1"
    assert (
        f"#0 llm: {settings} -> 1.25 s; compute 60 %, exposed 30 %, other 2 %, idle 8 %, "
        "hidden 10 %; peak memory 40 GiB\n"
    ) in turn
    assert f"#0 llm: {settings} -> the best; 1.25 s; 60/30/2/8 hidden 10; 40 GiB\n" in turn


def test_a_small_peak_has_one_unit_in_the_best_and_in_its_row() -> None:
    turn = write(History((trial(0, FIRST, measured(1.0, memory_gib=6 / 1024)),))).turn

    best, row = (line for line in turn.splitlines() if line.startswith("#0 "))
    assert best.endswith("; peak memory 6 MiB")
    assert row.endswith("; 6 MiB")
    assert "GiB" not in best + row


def test_a_row_tells_only_what_it_sets_otherwise_than_the_best() -> None:
    without = Config({k: v for k, v in FIRST.values.items() if k != "schedule"} | {"pp": 1})
    history = History(
        (
            trial(0, FIRST, measured(1.0)),
            trial(1, without, measured(2.0)),
            trial(2, FIRST, failed(FailureKind.DUPLICATE, "as trial 0", stage=Stage.CHECK)),
        )
    )
    turn = write(history).turn

    assert "#1 llm: as #0 but pp=1 without schedule -> ~0.50x; 2 s;" in turn
    assert "#2 llm: as #0 -> FAILED duplicate at check\n" in turn


def test_without_a_measured_trial_there_is_no_best() -> None:
    turn = write(History((trial(0, FIRST, out_of_memory()),))).turn

    assert "No trial is measured yet." in turn
    assert "nearest to bucket_mib=25" in turn


def test_the_latest_failure_is_told_in_full_with_its_program() -> None:
    message = "first cause " + "x" * 500 + " last word"
    latest = trial(1, None, failed(FailureKind.POLICY_ERROR, message, stage=Stage.DECIDE))
    turn = write(History((trial(0, FIRST, measured(1.0)), latest))).turn

    section = between(turn, "## Latest trial", "## Failures by kind")
    assert f"#1 llm: (no configuration) -> FAILED policy_error at decide: {message}\n" in section
    assert latest.policy.source in section
    assert "last word" not in turn.split("## Failures by kind")[1]


def test_the_latest_measured_trial_is_compared_with_the_best() -> None:
    history = History((trial(0, FIRST, measured(1.0)), trial(1, SECOND, measured(1.5))))

    assert (
        "\nagainst the best: ~0.67x; by part of the step: compute +30 %, exposed +15 %, "
        "other +1 %, idle +4 %\n"
    ) in write(history).turn


def test_best_and_latest_are_told_with_what_their_traces_say() -> None:
    history = History((trial(0, FIRST, measured(1.0)), trial(1, SECOND, measured(1.5))))
    turn = write(history).turn

    for section in (
        between(turn, "## Best so far", "## Latest trial"),
        between(turn, "## Latest trial", "## Trials, newest first"),
    ):
        assert "Its traces show: 60 % of the step is compute" in section
        assert "- all_reduce over 4 ranks (ranks 0 4 8 12 and 3 more groups" in section


@pytest.mark.parametrize(
    ("verdict", "ratio", "words"),
    [
        ("fast", (0.8, 0.75, 0.85), "1.25x better than #0 (1.18 to 1.33)"),
        ("slow", (1.25, 1.2, 1.3), "0.80x as good as #0 (0.77 to 0.83)"),
        (
            "same",
            (1.0, 0.99, 1.01),
            "1.00x as good as #0 (0.99 to 1.01), no difference in practice",
        ),
        ("undecided", (0.97, 0.33, 2.86), "1.03x better than #0 (0.35 to 3.03), undecided"),
        ("undecided", (1.1, None, None), "0.91x as good as #0, undecided"),
        ("unknown", (None, None, None), "not distinguishable from #0"),
    ],
)
def test_a_race_is_told_with_its_ratio_and_interval(
    verdict: str, ratio: tuple[float | None, ...], words: str
) -> None:
    raced = RaceResult(
        challenger=1,
        incumbent=0,
        verdict=verdict,
        ratio=ratio[0],
        ratio_low=ratio[1],
        ratio_high=ratio[2],
    )
    trials = (trial(0, FIRST, measured(1.0)), trial(1, SECOND, measured(1.5)))
    turn = write(History(trials, races=(raced,))).turn

    assert f"\nRaces: #1 was {words}.\n" in turn
    assert f"\nrace: {words}\n```" in turn


def test_a_failure_of_the_infrastructure_is_not_held_against_the_configuration() -> None:
    lost = trial(1, SECOND, failed(FailureKind.INFRASTRUCTURE, "node lost"))
    turn = write(History((trial(0, FIRST, measured(1.0)), lost))).turn

    assert "FAILED infrastructure at launch (not the configuration's fault): node lost" in turn
    assert "infrastructure once, not the configuration's fault, first in #1" in turn
    assert "399 of 400 launches remain" in turn


def test_untried_neighbours_of_the_best_are_told_by_what_they_change() -> None:
    history = History((trial(0, FIRST, measured(1.0)), trial(1, SECOND, measured(2.0))))
    turn = write(history).turn

    near = turn.split("## Untried configurations")[1]
    listed = [line for line in near.splitlines() if line.startswith("- ")]
    assert len(listed) == 12
    assert "- recompute=True" in listed
    assert "718 of 720 feasible" in turn


def test_neighbours_that_break_a_learnt_constraint_are_not_listed() -> None:
    best = Config(dict(FIRST.values) | {"micro_batch": 4})
    history = History((trial(0, best, measured(1.0)),))

    assert "- micro_batch=8\n" in write(history).turn
    assert "- micro_batch=8\n" not in write(history, learned=LEARNED).turn


def test_what_is_being_measured_is_told() -> None:
    turn = write(replace(past(9), pending=(THIRD,))).turn

    assert f"## Being measured now\n\n{'No results yet'}" in turn
    assert f"- {THIRD}\n" in between(turn, "## Being measured now", "## Candidates of")


def test_candidates_are_offered_with_their_reasons_from_the_first_turn_on() -> None:
    first, later = (
        between(write(history).turn, "## Candidates of the offline strategy", "\n# ")
        for history in (History(), past(9))
    )

    assert "Submit one of them or something else" in first
    assert f"1. {SPACE.feasible[0]}: from the best so far, change it; expected 1.10x" in first
    assert "1. as #4 but " in later
    assert ": expected 1.10x (0.90 to 1.30)\n2. " in later


def test_a_section_without_content_is_not_there() -> None:
    history = History((trial(0, FIRST, measured(1.0)),))
    turn = writer().write(STUDY, history, untried(SPACE, history)).turn

    headings = [line for line in turn.splitlines() if line.startswith("## ")]
    assert headings == [
        "## The machine today",
        "## Best so far",
        "## Latest trial",
        "## Trials, newest first",
        "## Untried configurations",
    ]


def test_a_space_too_large_to_list_is_still_described() -> None:
    wide = SearchSpace(
        dimensions=tuple(
            Dimension(name=name, range=Range(low=1, high=400)) for name in ("a", "b", "c")
        )
    )
    space = Space(wide, STUDY.workload, STUDY.environment)
    turn = PromptWriter(space, scoring(STUDY.objective)).write(STUDY, History(), None).turn

    assert "The space has 64000000 points before constraints." in turn
