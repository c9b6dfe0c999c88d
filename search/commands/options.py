"""Options that several commands share, and the study they describe together."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from evaluator.machine import local_environment
from records.study import Objective, Study
from search.builtin import builtin_study
from search.cards import card_study
from search.study_file import read_study_file

StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store", help="Folder of the records [default: $CCLSEARCH_STORE or .cclsearch here]."
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("-c", "--config", help="Study file (TOML), laid over the built-in study."),
]
CardOption = Annotated[
    Path | None, typer.Option("--card", help="CCL-Bench workload card (YAML), only read.")
]
TuningOption = Annotated[
    Path | None, typer.Option("--tuning", help="CCL-Bench tuning file (YAML), only read.")
]
BandwidthsOption = Annotated[
    str | None,
    typer.Option(
        "--card-bandwidths",
        help="What the card's two bandwidths are, in their order: scale_out,scale_up or "
        "scale_up,scale_out.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
StudyArgument = Annotated[
    str, typer.Argument(help="Study id or its beginning [default: the newest]")
]


def chosen_study(
    config: Path | None, card: Path | None, tuning: Path | None, bandwidths: str | None
) -> Study:
    """The built-in study, with a card laid over it and a study file over that."""
    study = builtin_study(local_environment())
    if card is not None:
        study = card_study(card, tuning, bandwidths, study)
    elif tuning is not None or bandwidths is not None:
        raise typer.BadParameter("--tuning and --card-bandwidths need --card")
    return read_study_file(config, study) if config is not None else study


def with_objective(study: Study, objective: str | None, minimize: bool, maximize: bool) -> Study:
    """The study with the objective that the flags name, if they name one."""
    if minimize and maximize:
        raise typer.BadParameter("--minimize and --maximize exclude each other")
    expression = objective or study.objective.expression
    direction = study.objective.direction if objective is None else None
    if minimize or maximize:
        direction = "minimize" if minimize else "maximize"
    return replace(study, objective=Objective(expression=expression, direction=direction))
