"""What the model is told of objectives, limits and contexts."""

from dataclasses import replace

from evaluator.objective import scoring_of
from records.study import Budget, Context, Objective, Study
from records.trial import History, Score
from search.llm.messages import Prompt
from search.llm.prompt import PromptWriter
from search.strategies.base import untried
from tests.support.search import SPACE, STUDY, measured, past, trial

FIRST, SECOND = SPACE.feasible[1], SPACE.feasible[2]


def write(history: History, study: Study = STUDY) -> Prompt:
    return PromptWriter(SPACE, scoring_of(study)).write(study, history, untried(SPACE, history))


def between(text: str, start: str, end: str) -> str:
    return text.split(start)[1].split(end)[0]


def test_the_metrics_of_a_composite_objective_are_shown() -> None:
    composite = Objective(expression="step_time / mfu", direction="minimize")
    history = History((trial(0, FIRST, measured(1.25)),))
    prompt = write(history, replace(STUDY, objective=composite))

    assert "step_time 1.25 s; mfu 0.4; compute" in prompt.turn


def test_the_best_of_a_maximised_objective_is_the_highest() -> None:
    def run(ordinal: int, value: float) -> object:
        score = Score(cost=-value, value=value, unit="tokens/s")
        return replace(trial(ordinal, SPACE.feasible[ordinal], measured(1.0)), score=score)

    study = replace(STUDY, objective=Objective(expression="tokens_per_s"))
    prompt = write(History((run(0, 21849.0), run(1, 2313.0), run(2, 21500.0))), study)

    assert "maximize `tokens_per_s` (tokens/s). Higher is better." in prompt.task
    best = between(prompt.turn, "## Best so far", "## Latest trial")
    assert best.strip().startswith("```\n#0 llm:")
    assert "21849 tokens/s" in best
    assert "Not distinguishable from it: #2 ~0.98x.\n" in best
    assert "-> ~0.11x; 2313 tokens/s;" in prompt.turn


def test_limits_and_further_objectives_are_part_of_the_task() -> None:
    study = replace(
        STUDY,
        more_objectives=(Objective(expression="mfu"),),
        limits=("peak_memory < 30 GiB",),
        budget=Budget(trials=20, max_tokens=5000, max_cost_usd=2.5),
    )
    task = write(History(), study).task

    assert "Also maximize `mfu`. Each turn weighs the objectives differently" in task
    assert "A trial can only lead if `peak_memory < 30 GiB`." in task
    assert "All requests to you together may use at most 5000 tokens and 2.5 USD." in task


def test_a_trial_that_breaks_a_limit_says_so_and_does_not_lead() -> None:
    score = Score(cost=1.0, value=1.0, unit="s", broken=("mfu > 0.5 is broken: mfu is 0.4",))
    history = History(
        (replace(trial(0, FIRST, measured(1.0)), score=score), trial(1, SECOND, measured(2.0)))
    )
    turn = write(history).turn

    assert between(turn, "## Best so far", "## Latest").strip().startswith("```\n#1 llm")
    assert "40 GiB; mfu > 0.5 is broken: mfu is 0.4\n" in turn


def test_a_front_is_told_with_the_weights_of_the_turn() -> None:
    history = replace(
        past(10), front=(4, 5), weights=(("step_time", 0.75), ("mfu", 0.25)), costs={4: 0.1, 5: 0.2}
    )
    turn = write(history).turn

    assert "Pareto front: #4, #5." in turn
    assert "This turn weighs 0.75 for `step_time`, 0.25 for `mfu`;" in turn
    assert "when launched again" not in turn


def test_other_contexts_are_told_by_what_is_different_there_and_held_out_ones_are_not() -> None:
    small = replace(STUDY.workload, name="llama-1b", layer_count=16)
    study = replace(
        STUDY,
        contexts=(
            Context(name="small", workload=small, environment=STUDY.environment),
            Context(name="secret", workload=small, environment=STUDY.environment, held_out=True),
        ),
    )
    task = write(History(), study).task

    told = between(task, "# More contexts", "# The space")
    assert (
        "context small:\nworkload['name'] == 'llama-1b'\nworkload['layer_count'] == 16\n```" in told
    )
    assert "launched in 1 more contexts, not shown here" in told
    assert "secret" not in task
