"""Prints and draws the front of a study with several objectives."""

import json
from pathlib import Path

import typer

from evaluator.objective import scoring_of
from records.codec import to_json
from records.errors import StudyError
from search.commands.options import Asked, store_flag
from search.front import Member
from search.reading import recorded
from search.report import print_lines
from search.rescoring import rescored
from search.standing import standing_of
from search.words.objective import front_words, objective_words


def print_front(
    study_id: str, asked: Asked, plot: Path | None, store: Path | None, *, as_json: bool
) -> None:
    """Print the trials that no other beats in all objectives, and draw them into `plot`."""
    with recorded(store) as records:
        row = records.find(study_id)
        study = asked.of(row.study)
        if not study.more_objectives:
            raise StudyError(
                f"study {row.id} has one objective, so there is no front; ask for more, as in "
                f"`cclsearch show {row.id} --front --objective step_time --objective rank_count"
                f"{store_flag(records.root)}`"
            )
        if asked.is_given:
            again = rescored(row, records, study)
            history, front, scoring = again.history, again.finding.front, again.scoring
        else:
            led = standing_of(row, records)
            history, front = led.history, led.front
            scoring = scoring_of(study).over(history)
    if plot is not None:
        from search.front_plots import front_figure
        from search.traces.plots import save

        save(front_figure(scoring, history, front, f"{study.name}: {row.id}"), plot)
    if as_json:
        typer.echo(json.dumps([_facts(member) for member in front]))
        return
    how = "; scored again, nothing was launched" if asked.is_given else ""
    print_lines(
        [
            (
                "front",
                f"{len(front)} of {len(history.measured)} measured trials, over "
                f"{objective_words(study)}{how}",
            ),
            *(("front", words) for words in front_words(front, history)),
        ]
    )


def _facts(member: Member) -> object:
    facts: object = json.loads(to_json(member))
    return facts
