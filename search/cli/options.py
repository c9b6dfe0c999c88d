"""Options that several commands share, and the study that they describe."""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, get_type_hints

import typer

from policies.space import Space
from records.errors import StoreError, StudyError
from records.study import Objective, Study
from search.settings import store_root
from search.views.svg import chart_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from search.study.card_reader import Given
    from search.traces.open import OpenTraces


StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FOLDER",
        help="Folder of the store. [default: $CCLSEARCH_STORE, else .cclsearch here]",
    ),
]
CardOption = Annotated[
    Path | None,
    typer.Option("--card", metavar="FILE", help="CCL-Bench workload card (YAML)."),
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
PythonOption = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="Python with the torch that ranks run. [default: that of cclsearch]",
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
    typer.Option(
        "--plot",
        metavar="FILE.svg",
        callback=chart_file,
        help="Also draw a chart into this file, .svg or .html.",
    ),
]


def examples(*commands: str) -> str:
    """Return example commands for the end of a help text."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


TYPER = "typer"
T = TypeVar("T")


def option(
    default: T,
    words: str,
    *names: str,
    metavar: str | None = None,
    min: float | None = None,
    max: float | None = None,
) -> T:
    """Return the default of an option, with its help; without names it is called as its parameter.

    For parameters of commands that take options, and for fields of classes of options.
    """
    of = typer.Option(default, *names, help=words, metavar=metavar, min=min, max=max)
    return _parameter(default, of)


def argument(default: T, words: str, *, metavar: str) -> T:
    """Return the default of an argument, with its help."""
    return _parameter(
        default, typer.Argument(default, help=words, metavar=metavar, show_default=False)
    )


def _parameter(default: T, of: object) -> T:
    return field(default_factory=lambda: copy(default), metadata={TYPER: of})


SETTING = re.compile(r"[a-z]\w*=.*", re.DOTALL)
LINE = "line"


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take options, and values of dataclasses whose fields are options of it.

    Where the command takes settings (`KNOB=VALUE`) too, a launch line begins after the last.
    """
    classes: dict[str, type] = {}
    parameters: list[Parameter] = []
    for each in signature(command, eval_str=True).parameters.values():
        if isinstance(each.annotation, type) and is_dataclass(each.annotation):
            classes[each.name] = each.annotation
            parameters += _parameters(each.annotation)
        else:
            default = _typed(each.name, each.annotation, each.default)
            parameters.append(each.replace(kind=Parameter.KEYWORD_ONLY, default=default))
    names = [each.name for each in parameters]
    shares_words = LINE in names and "settings" in names
    if shares_words:
        del parameters[names.index(LINE)]

    @wraps(command)
    def run(**given: object) -> None:
        if shares_words:
            words = given["settings"]
            listed = words if isinstance(words, list) else []
            has_line = given["recipe"] is not None
            given |= _settings_and_line(listed) if has_line else {"settings": listed, LINE: None}
        for name, kind in classes.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        command(**given)

    vars(run)["__signature__"] = Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def setting(text: str) -> tuple[str, object]:
    """Return the knob and the value of `KNOB=VALUE`; raises `StudyError` for another text."""
    knob, equals, value = text.partition("=")
    if not equals:
        raise StudyError(f"{text!r} is not KNOB=VALUE")
    try:
        return knob, json.loads(value)
    except json.JSONDecodeError:
        return knob, value


def _settings_and_line(words: list[str]) -> dict[str, object]:
    """Return the words up to the last setting at the start, and the launch line after them."""
    count = sum(1 for _ in takewhile(SETTING.fullmatch, words))
    return {"settings": words[:count], LINE: words[count:] or None}


def _parameters(kind: type) -> Iterator[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        if TYPER in each.metadata:
            default = _typed(each.name, hints[each.name], each)
        elif each.default_factory is not MISSING:
            default = each.default_factory()
        else:
            default = Parameter.empty if each.default is MISSING else each.default
        yield Parameter(
            each.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[each.name]
        )


def _typed(name: str, kind: object, default: object) -> object:
    """Return a default as Typer takes it; a flag has no `--no-` form."""
    if not isinstance(default, Field):
        return default
    of = default.metadata[TYPER]
    if kind is bool and not of.param_decls:
        of.param_decls = (f"--{name.replace('_', '-')}",)
    return of


def flags_given(options: "DataclassInstance") -> Iterator[str]:
    """Yield the flags of the options that differ from their defaults."""
    defaults = type(options)()
    hints = get_type_hints(type(options), include_extras=True)
    for each in fields(options):
        if getattr(options, each.name) != getattr(defaults, each.name):
            of = each.metadata.get(TYPER) or hints[each.name].__metadata__[0]
            names = map(str, (of.default, *(of.param_decls or ())))
            default = f"--{each.name.replace('_', '-')}"
            yield next((name for name in names if name.startswith("--")), default)


LineArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="COMMAND",
        help="With --recipe, after --: the command that you start today.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """A study from a file, a card, or the launch line of a framework."""

    line: LineArgument = None
    recipe: str | None = option(
        None,
        "Framework that your launch line starts; its flags become knobs. See `cclsearch recipes`.",
        metavar="NAME",
    )
    baseline: Path | None = option(
        None,
        "With --recipe: shell script with your launch line of today. It is followed, and "
        "starts nothing. The command itself can be given after -- instead.",
        metavar="FILE",
    )
    config: Path | None = option(
        None, "Study file (TOML); overrides the built-in study.", "-c", "--config", metavar="FILE"
    )
    card: CardOption = None
    tuning: Path | None = option(None, "CCL-Bench tuning file (YAML).", metavar="FILE")
    card_bandwidths: BandwidthsOption = None
    batch_size: BatchSizeOption = None
    gpus: GpusOption = None
    command: Path | None = option(
        None,
        "With --card: bash script that each trial runs, as in CCL-Search; knobs are "
        "environment variables.",
        metavar="FILE",
    )
    python: PythonOption = None

    def study(self, base: Study | None = None) -> Study:
        """Return the base (default: the built-in study), overridden by the card, then by the file.

        Inferences from the card are printed to standard error.
        """
        from evaluator.machine import local_environment
        from search.study.card_reader import Given
        from search.study.cards import card_study
        from search.study.study_file import builtin_study, read_study_file, with_python

        study = base or builtin_study(local_environment())
        if self.recipe is not None:
            study = self._framework_study(study)
        elif self.baseline is not None or self.line:
            raise StudyError(
                "a launch line needs the name of its framework; add --recipe NAME; "
                "`cclsearch recipes` lists them"
            )
        given = card_given(self.card_bandwidths, self.batch_size, self.gpus)
        if self.card is not None:
            given = _with_file(given, self.config)
            study = card_study(self.card, self.tuning, given, study, self.command)
            for sentence in study.inferences:
                typer.echo(f"card: {sentence}", err=True)
        elif self.tuning is not None or self.command is not None or given != Given():
            raise StudyError(
                "--tuning, --command, --card-bandwidths, --batch-size and --gpus need a card; add "
                "--card FILE"
            )
        if self.config is not None:
            study = read_study_file(self.config, study)
        return study if self.python is None else with_python(study, self.python, Path.cwd())

    @property
    def words(self) -> str:
        """Recipe, card, study file and launch line again, as typed after a command."""
        named = {
            "--recipe": self.recipe,
            "--baseline": self.baseline,
            "--card": self.card,
            "--tuning": self.tuning,
            "--command": self.command,
            "-c": self.config,
            "--python": self.python,
        }
        words = [word for flag, value in named.items() if value for word in (flag, str(value))]
        words += ["--", *self.line] if self.line else []
        return "".join(f" {shlex.quote(word)}" for word in words)

    @property
    def written(self) -> str:
        """What a person may correct: the script or launch line, and the files beside it."""
        line = "the launch line" if self.line else "the script"
        files = (self.command or self.baseline or line, self.card, self.tuning, self.config)
        return " or ".join(str(each) for each in files if each)

    def _framework_study(self, base: Study) -> Study:
        """Return the study of a launch line; what was found is printed to standard error."""
        from search.study.framework_study import framework_study

        found = framework_study(
            self.recipe or "",
            self.baseline,
            self.line or (),
            base,
            lambda note: typer.echo(f"{self.recipe}: {note}", err=True),
            self.config,
        )
        for note in found.notes:
            typer.echo(f"{self.recipe}: {note}", err=True)
        return found.study

    def completed(self) -> tuple[Study, Space]:
        """Return the study with every default filled in, and its search space."""
        from search.study.spaces import completed, space_of

        study = completed(self.study())
        return study, space_of(study)


def card_given(bandwidths: str | None, batch_size: int | None, gpus: int | None) -> "Given":
    """Return what the options give in place of the card."""
    from search.study.card_reader import Given

    return Given(batch_size=batch_size, accelerator_count=gpus, bandwidths=bandwidths)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveOptions:
    """Objectives and limits; the first objective is the main one, which has the direction."""

    objective: list[str] = option(
        [],
        "Rescore recorded trials by another objective; nothing is launched. Repeatable. "
        "[default: the study's]",
        metavar="EXPRESSION",
    )
    minimize: bool = option(False, "Lower is better. [default: as the metrics define]")
    maximize: bool = option(False, "Higher is better.")
    limit: list[str] = option(
        [],
        "Constraint that the best trial must satisfy, as in 'peak_memory < 30 GiB'; units "
        "are B, KiB, "
        "MiB, GiB, TiB, kB, MB, GB, TB, us, ms, s and %. Repeatable. [default: the study's]",
        metavar="CONDITION",
    )

    @property
    def is_given(self) -> bool:
        """Whether any flag was given."""
        return self != type(self)()

    def of(self, study: Study) -> Study:
        """Return the study with these objectives and limits, where any are given."""
        if self.minimize and self.maximize:
            raise StudyError("--minimize and --maximize exclude each other; give one of them")
        main, more = study.objective, study.more_objectives
        if self.objective:
            main, *others = (Objective(expression=text) for text in self.objective)
            more = tuple(others)
        if self.minimize or self.maximize:
            main = replace(main, direction="minimize" if self.minimize else "maximize")
        limits = tuple(self.limit) or study.limits
        return replace(study, objective=main, more_objectives=more, limits=limits)

    @property
    def flags(self) -> str:
        """The same flags, as typed after a command."""
        words = [f"--objective {shlex.quote(text)}" for text in self.objective]
        words += ["--minimize"] * self.minimize + ["--maximize"] * self.maximize
        words += [f"--limit {shlex.quote(text)}" for text in self.limit]
        return "".join(f" {word}" for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchObjectives(ObjectiveOptions):
    """What a new search looks for."""

    objective: list[str] = option(
        [],
        "Metric name, or an expression over metrics; step_time@seed is the value of the "
        "seed. Repeat it to search for the Pareto front; the first is the main "
        "objective. [default: step_time]",
        metavar="EXPRESSION",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Where traces are read from, and whether next to them is a cache."""

    trace: TraceArgument
    no_cache: NoCacheOption = False
    store: StoreOption = None

    def read(self) -> "OpenTraces":
        """Return the traces."""
        from search.traces.open import open_traces

        return open_traces(self.trace, self.store, use_cache=not self.no_cache)


def print_result(facts: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the facts as JSON, or else the lines."""
    for line in [json.dumps(facts, allow_nan=False)] if as_json else lines:
        typer.echo(line)


def write_file(path: Path, text: str, *, mode: Literal["w", "x"] = "w") -> None:
    """Write a file that an option names; raise `StudyError` for a wrong name, else `StoreError`."""
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        is_name = isinstance(error, FileExistsError | IsADirectoryError)
        words = f"cannot write {path}: {error.strerror}; give another file"
        raise (StudyError if is_name else StoreError)(words) from error


def store_flag(store: Path) -> str:
    """Return the --store flag that a suggested command needs, or an empty text."""
    return "" if store == store_root(None).absolute() else f" --store {shlex.quote(str(store))}"
