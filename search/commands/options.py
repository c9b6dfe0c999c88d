"""Options that several commands share, and the study they describe together."""

import shlex
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from evaluator.machine import local_environment
from records.errors import StudyError
from records.study import Objective, Study
from search.builtin import builtin_study
from search.cards import card_study
from search.settings import store_root
from search.study_file import read_study_file

StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FOLDER",
        help="Folder of the records. [default: $CCLSEARCH_STORE, else .cclsearch here]",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", metavar="FILE", help="Study file (TOML), laid over the built-in study."
    ),
]
CardOption = Annotated[
    Path | None,
    typer.Option("--card", metavar="FILE", help="CCL-Bench workload card (YAML); only read."),
]
TuningOption = Annotated[
    Path | None,
    typer.Option("--tuning", metavar="FILE", help="CCL-Bench tuning file (YAML); only read."),
]
CommandOption = Annotated[
    Path | None,
    typer.Option(
        "--command",
        metavar="FILE",
        help="Script that a card's trials start with bash, as in CCL-Search; knobs are variables.",
    ),
]
BandwidthsOption = Annotated[
    str | None,
    typer.Option(
        "--card-bandwidths",
        metavar="A,B",
        help="What the card's two bandwidths are, in their order: scale_out,scale_up or "
        "scale_up,scale_out.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
StudyArgument = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="Study id or its beginning. [default: the newest]",
        show_default=False,
    ),
]
TraceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="Folder with one trace per rank, or one trace; trial:3 or trial:STUDY:3 for those of "
        "a trial on record.",
        show_default=False,
    ),
]
NoCacheOption = Annotated[
    bool,
    typer.Option("--no-cache", help="Neither use nor leave a cache beside the traces."),
]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE.png", help="Draw it into this file as well."),
]


def examples(*commands: str) -> str:
    """Commands to show under a help text as they are typed."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def chosen_study(
    config: Path | None,
    card: Path | None,
    tuning: Path | None,
    bandwidths: str | None,
    command: Path | None,
) -> Study:
    """The built-in study, with a card laid over it and a study file over that."""
    study = builtin_study(local_environment())
    if card is not None:
        study = card_study(card, tuning, bandwidths, study, command)
    elif tuning is not None or bandwidths is not None or command is not None:
        raise StudyError(
            "--tuning, --card-bandwidths and --command say more about a card; add --card FILE"
        )
    return read_study_file(config, study) if config is not None else study


def with_objective(study: Study, objective: str | None, minimize: bool, maximize: bool) -> Study:
    """The study with the objective that the flags name, if they name one."""
    if minimize and maximize:
        raise StudyError("--minimize and --maximize exclude each other; give one of them")
    expression = objective or study.objective.expression
    direction = study.objective.direction if objective is None else None
    if minimize or maximize:
        direction = "minimize" if minimize else "maximize"
    return replace(study, objective=Objective(expression=expression, direction=direction))


def store_flag(store: Path) -> str:
    """What a suggested command must add to find this store, which may be nothing."""
    return "" if store == store_root(None).absolute() else f" --store {shlex.quote(str(store))}"


def installed_version() -> str:
    """Version of this installation."""
    return version("cclsearch")
