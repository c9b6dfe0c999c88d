"""Options that several commands share, and the study that they describe."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from records.errors import StudyError
from records.study import Objective, Study
from search.settings import store_root

if TYPE_CHECKING:
    from search.study.card_reader import Given


StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FOLDER",
        help="Folder of the store. [default: $CCLSEARCH_STORE, else .cclsearch here]",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", metavar="FILE", help="Study file (TOML); overrides the built-in study."
    ),
]
CardOption = Annotated[
    Path | None,
    typer.Option("--card", metavar="FILE", help="CCL-Bench workload card (YAML)."),
]
TuningOption = Annotated[
    Path | None,
    typer.Option("--tuning", metavar="FILE", help="CCL-Bench tuning file (YAML)."),
]
CommandOption = Annotated[
    Path | None,
    typer.Option(
        "--command",
        metavar="FILE",
        help="With --card: bash script that each trial runs, as in CCL-Search; knobs are "
        "environment variables.",
    ),
]
BandwidthsOption = Annotated[
    str | None,
    typer.Option(
        "--card-bandwidths",
        metavar="A,B",
        help="Order of the card's two bandwidths: scale_out,scale_up or scale_up,scale_out. "
        "[default: the faster one is inside a node]",
    ),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        metavar="N",
        min=1,
        help="Global batch size in sequences, if the card states none or several.",
    ),
]
GpusOption = Annotated[
    int | None,
    typer.Option(
        "--gpus", metavar="N", min=1, help="Number of accelerators, if the card states none."
    ),
]
MinimizeOption = Annotated[
    bool,
    typer.Option("--minimize", help="Lower is better. [default: as the metrics define]"),
]
MaximizeOption = Annotated[bool, typer.Option("--maximize", help="Higher is better.")]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="CONDITION",
        help="Constraint that the best trial must satisfy, as in 'peak_memory < 30 GiB'; units "
        "are B, KiB, "
        "MiB, GiB, TiB, kB, MB, GB, TB, us, ms, s and %. Repeatable. [default: the study's]",
    ),
]
OtherObjectiveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--objective",
        metavar="EXPRESSION",
        help="Rescore recorded trials by another objective; nothing is launched. Repeatable. "
        "[default: the study's]",
    ),
]
MetricsFileOption = Annotated[
    Path | None,
    typer.Option(
        "--metrics-file",
        metavar="FILE",
        help="Python file with your own metrics. It is executed, so it must be trusted.",
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Allow an imported study to run its commands (see `cclsearch show`); remembered.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
StudyArgument = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="Study id or a prefix of it. [default: the newest]",
        show_default=False,
    ),
]
TraceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="Folder with one trace per rank, or one trace file; trial:3 or trial:STUDY:3 for "
        "the traces of a recorded trial.",
        show_default=False,
    ),
]
NoCacheOption = Annotated[
    bool,
    typer.Option("--no-cache", help="Do not read or write a cache next to the traces."),
]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE.png", help="Also draw a chart into this file."),
]


def examples(*commands: str) -> str:
    """Return example commands for the end of a help text."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def card_given(bandwidths: str | None, batch_size: int | None, gpus: int | None) -> "Given":
    """Return what the options give in place of the card."""
    from search.study.card_reader import Given

    return Given(batch_size=batch_size, accelerator_count=gpus, bandwidths=bandwidths)


def chosen_study(
    config: Path | None,
    card: Path | None,
    tuning: Path | None,
    given: "Given",
    command: Path | None,
    base: Study | None = None,
) -> Study:
    """Return the base (default: the built-in study), overridden by a card, then by a file.

    Inferences from the card are printed to standard error.
    """
    from evaluator.machine import local_environment
    from search.study.card_reader import Given
    from search.study.cards import card_study
    from search.study.study_file import builtin_study, read_study_file

    study = base or builtin_study(local_environment())
    if card is not None:
        study = card_study(card, tuning, _with_file(given, config), study, command)
        for sentence in study.inferences:
            typer.echo(f"card: {sentence}", err=True)
    elif tuning is not None or command is not None or given != Given():
        raise StudyError(
            "--tuning, --command, --card-bandwidths, --batch-size and --gpus need a card; add "
            "--card FILE"
        )
    return read_study_file(config, study) if config is not None else study


def _with_file(given: "Given", config: Path | None) -> "Given":
    """Return what the options give, completed with the batch and length of the study file."""
    if config is None:
        return given
    from search.study.study_file import stated_workload

    stated = stated_workload(config)
    return replace(
        given,
        batch_size=given.batch_size or stated.get("global_batch"),
        sequence_length=stated.get("sequence_length"),
    )


def with_model(study: Study, model: str | None) -> Study:
    """Return the study with another LLM; the price of the old one is dropped."""
    if model is None or model == study.llm.model:
        return study
    if not model.strip() or not model.isprintable():
        raise StudyError("--model is empty; give the name that the provider uses")
    return replace(study, llm=replace(study.llm, model=model, price=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveOptions:
    """Objectives and limits from flags; the first objective is the main one.

    `minimize` and `maximize` apply to the main one.
    """

    objectives: Sequence[str] = ()
    minimize: bool = False
    maximize: bool = False
    limits: Sequence[str] = ()

    @property
    def is_given(self) -> bool:
        """Whether any flag was given."""
        return bool(self.objectives or self.minimize or self.maximize or self.limits)

    def of(self, study: Study) -> Study:
        """Return the study with these objectives and limits in place of its own."""
        if self.minimize and self.maximize:
            raise StudyError("--minimize and --maximize exclude each other; give one of them")
        main, more = study.objective, study.more_objectives
        if self.objectives:
            main, *others = (Objective(expression=text) for text in self.objectives)
            more = tuple(others)
        if self.minimize or self.maximize:
            main = replace(main, direction="minimize" if self.minimize else "maximize")
        limits = tuple(self.limits) or study.limits
        return replace(study, objective=main, more_objectives=more, limits=limits)

    @property
    def flags(self) -> str:
        """The same flags, as typed after a command."""
        words = [f"--objective {shlex.quote(text)}" for text in self.objectives]
        words += ["--minimize"] * self.minimize + ["--maximize"] * self.maximize
        words += [f"--limit {shlex.quote(text)}" for text in self.limits]
        return "".join(f" {word}" for word in words)


def store_flag(store: Path) -> str:
    """Return the --store flag that a suggested command needs, or an empty text."""
    return "" if store == store_root(None).absolute() else f" --store {shlex.quote(str(store))}"
