"""A framework as a recipe: the user's own launch line, with knobs as the framework's flags.

`NAME.toml` holds what is known of a framework as data: knobs, rules, what holds the work equal and
what shows that a knob took hold. `NAME.py` has what data cannot say.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from evaluator.estimate.step_time import estimate_script, script_as_builtin
from evaluator.ports import Job, JobResult, Reading
from evaluator.rank.protocol import COMMAND_LOG
from evaluator.recipes.builtin import FITS, counts_ranks
from evaluator.recipes.command import (
    ARGS,
    OF_THE_JOB,
    RANKS_RULE,
    SECRET,
    WORK_VARIABLES,
    CommandRecipe,
    locate,
)
from evaluator.recipes.frameworks.flags import Flags, folder_of
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer
from evaluator.recipes.knobs import Knob, KnobTable, Rules, new_rule, new_rules
from records.errors import StudyError
from records.expression import Rule, facts, parse
from records.scrub import Scrubber
from records.study import Command, Dimension, SearchSpace, Study, Value, choices_of
from records.trial import Config, Failed, FailureKind, Stage
from records.workload import Workload

IN_JOB = "in_job"
TIMEOUT_S = 900.0
"""A framework may import, build and compile a model for minutes."""
_LAUNCHER_COUNTS = {
    "torchrun": "--nproc-per-node",
    "accelerate": "--num_processes",
    "deepspeed": "--num_gpus",
}
"""How each launcher is told the ranks of a node."""
_RENDEZVOUS = re.compile(
    r"--(nnodes|node[-_]rank|master[-_](addr|port)|rdzv[-_].*|local[-_]addr|nproc[-_]per[-_]node"
    r"|num_processes|num_machines|machine_rank|main_process_(ip|port)|num_gpus|num_nodes|standalone)"
)
"""Options of launchers that a trial sets: each has its own ranks and a free port."""
_ON_ONE_NODE = re.compile(r"--standalone$|--nproc-per-node=")
"""What a study says to torchrun, and each of several nodes says better."""
VERSION = "CCLSEARCH_FRAMEWORK_VERSION"
"""The variable that keeps whose flags a study takes."""
_SECRET_FLAG = re.compile(
    r"(api|access|private)_?key|(hf|hub|auth|access|api)_?token|secret|passw|credential|cookie",
    re.IGNORECASE,
)


class FrameworkKnob(Knob, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A knob that is a flag of the framework.

    `values` spell ours as theirs where they differ; for the value `left_out` the flag is left out.
    A `degree` has the divisors of the number of ranks as choices. One that is not `searched` is
    left as the launch line has it, unless a study file names it. `reason` says why `when`.
    """

    flag: str
    spelling: Literal["value", "switch", "negatable"] = "value"
    values: dict[str, str] = msgspec.field(default_factory=dict)
    left_out: Value | None = None
    degree: bool = False
    searched: bool = True
    reason: str = ""

    def words(self, value: Value) -> tuple[str, ...]:
        """Return the arguments that set the knob to a value."""
        if value == self.left_out and type(value) is type(self.left_out):
            return ()
        if self.spelling != "value":
            no = "--no-" + self.flag.removeprefix("--")
            return (self.flag,) if value else (no,) if self.spelling == "negatable" else ()
        plain = str(value).lower() if isinstance(value, bool) else str(value)
        text = self.values.get(plain, plain)
        return (f"{self.flag}={text}",)

    def value(self, text: object) -> Value:
        """Return our value for one of theirs, as the parser or the launch line has it."""
        plain = str(text)
        ours = {theirs.lower(): own for own, theirs in self.values.items()}
        plain = ours.get(plain.lower(), plain)
        if isinstance(self.default, bool):
            return plain.lower() in {"true", "1", "yes", "on"}
        if isinstance(self.default, int) and re.fullmatch(r"-?\d+", plain):
            return int(plain)
        if isinstance(self.default, float):
            return float(plain)
        return plain


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a launch must show where `when` holds, or a knob did not take hold.

    `collectives` are kinds that its traces must have, `log` what its output must match.
    """

    when: str
    reason: str
    collectives: tuple[str, ...] = ()
    log: str | None = None


class FrameworkTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a framework as data.

    `packages` are its distributions, the first decides the version. `work` are arguments that hold
    the work of a step equal; names in braces stand for counts of the study. `dropped` flags would
    spoil a measurement. `inherit` are patterns of our variables that the framework reads.
    `rank_count` is an expression over knobs. `checked` says how the recipe was checked.
    """

    title: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    rank_count: str
    knobs: dict[str, FrameworkKnob]
    rules: Rules = {}
    evidence: tuple[Evidence, ...] = ()
    work: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    inherit: tuple[str, ...] = ()
    trace_files: tuple[str, ...] = ("*.json", "*.json.gz", "*.xplane.pb")
    step_time: str | None = None
    phase: Literal["training", "inference"] = "training"
    checked: str = "recorded flags"


class FrameworkRecipe(CommandRecipe):
    """Starts a framework by the user's own launch line; each framework is a subclass."""

    name: ClassVar[str]

    @cached_property
    def table(self) -> FrameworkTable:
        """What is known of the framework as data."""
        text = (folder_of(self.name) / f"{self.name}.toml").read_text("utf-8")
        return msgspec.toml.decode(text, type=FrameworkTable)

    # From a launch line to a study.

    def starts(self, line: LaunchLine) -> bool:
        """Whether a line starts this framework."""
        text = " ".join(line.program)
        return any(re.search(pattern, text) for pattern in self.table.programs)

    def started_ranks(self, line: LaunchLine) -> int | None:
        """Return how many ranks a line starts; None where it does not say so."""
        return line.rank_count

    def study(self, line: LaunchLine, base: Study, answer: Answer | None = None) -> Study:
        """Return the search around a launch line: what it sets are the seeds, the rest stays.

        `answer` is what the framework's parser made of the line, if it was asked. Raises
        `StudyError` for a line that lacks what a search needs.
        """
        line = line.located()
        versions = answer.versions if answer else {}
        flags, _ = Flags.of(self.name, versions.get(self.table.packages[0]))
        seeds, left = self._seeds(line, flags, answer)
        command = Command(
            run=(*self._launcher(line), *line.program, *left, ARGS),
            trace_files=self.table.trace_files,
            rank_count=self.table.rank_count,
            environment={**self._variables(line), VERSION: flags.version},
            inherit=self.table.inherit,
            step_time=self.table.step_time,
        )
        workload = self.workload(base.workload, line, answer)
        study = replace(
            base,
            name=self.name,
            workload=workload,
            seed_policy="first",
            launch=replace(base.launch, recipe=self.name, memory_budget_bytes=None),
            measure=replace(base.measure, timeout_s=max(TIMEOUT_S, base.measure.timeout_s)),
            command=locate(command, line.folder),
            space=SearchSpace(dimensions=(), defaults=seeds),
        )
        space = self._space(study)
        fixed = answer.fixed if answer else {}
        kept = tuple(each for each in space.dimensions if each.name not in fixed)
        return replace(study, space=replace(space, dimensions=kept))

    def version(self, study: Study) -> str:
        """Return the recorded version that is nearest to the one of the job."""
        given = study.command.environment.get(VERSION) if study.command else None
        return Flags.of(self.name, given)[0].version

    def knobs_of(self, flags: Flags) -> Mapping[str, FrameworkKnob]:  # noqa: ARG002 - for subclasses
        """Return the knobs that a version has, with its flags."""
        return self.table.knobs

    def workload(self, base: Workload, line: LaunchLine, answer: Answer | None) -> Workload:  # noqa: ARG002 - for subclasses
        """Return the work of a step that a line asks for, and the sizes of its model."""
        known = {
            name: value for name, value in (answer.workload if answer else {}).items() if value
        }
        work = Workload(
            name=str(known.pop("name", self.name)),
            global_batch=int(known.pop("global_batch", 1)),
            sequence_length=int(known.pop("sequence_length", 1)),
            phase=self.table.phase,
        )
        return replace(work, **known)  # type: ignore[arg-type]  # names of [workload]

    def seed(self, values: dict[str, Value], rank_count: int) -> dict[str, Value]:  # noqa: ARG002 - for subclasses
        """Return the seeds with what the framework fills in itself, such as the ranks left over."""
        return values

    def knobs(self, study: Study) -> Mapping[str, FrameworkKnob]:
        """Return the knobs, today's values as defaults, with every choice that could make sense."""
        ranks = study.environment.world_size
        degrees = tuple(n for n in range(1, ranks + 1) if ranks % n == 0)
        found = {}
        flags, _ = Flags.of(self.name, self.version(study))
        for name, knob in self.knobs_of(flags).items():
            own = knob.for_device(study.environment.device)
            default = study.space.defaults.get(name, own.default)
            listed = own.choices or (degrees if knob.degree else ())
            if not listed and isinstance(own.default, bool):
                listed = (False, True)
            choices = tuple(dict.fromkeys((default, *listed)))
            found[name] = msgspec.structs.replace(own, default=default, choices=choices)
        return found  # type: ignore[return-value]  # `for_device` keeps the class

    def _seeds(
        self, line: LaunchLine, flags: Flags, answer: Answer | None
    ) -> tuple[dict[str, Value], list[str]]:
        """Return today's value of each knob that is known, and the arguments that are no knobs."""
        knobs = self.knobs_of(flags)
        by_flag = {
            found[0] if (found := flags.named(knob.flag)) else knob.flag: name
            for name, knob in knobs.items()
        }
        set_by_us = {flags.split([word]).__next__()[0] for word in (*self.table.work,)}
        set_by_us |= {named[0] for flag in self.table.dropped if (named := flags.named(flag))}
        seeds: dict[str, Value] = {}
        left: list[str] = []
        for flag, value, words in flags.split(line.arguments):
            if flag in by_flag and value is not None:
                seeds[by_flag[flag]] = knobs[by_flag[flag]].value(value)
            elif flag not in set_by_us:
                left += words
        resolved = answer.parsed[0].values if answer and answer.parsed else {}
        for name, knob in knobs.items():
            of_parser = resolved.get(knob.flag)
            if of_parser is not None:
                seeds[name] = knob.value(of_parser)
        return seeds, left

    def _space(self, study: Study) -> SearchSpace:
        ranks = study.environment.world_size
        seeds = self.seed(dict(study.space.defaults), ranks)
        space = replace(study.space, defaults=seeds)
        knobs = self.knobs(replace(study, space=space))
        dimensions = (
            Dimension(name=name, choices=knob.choices)
            for name, knob in knobs.items()
            if knob.searched and len(knob.choices) > 1
        )
        return replace(space, dimensions=tuple(dimensions))

    def _launcher(self, line: LaunchLine) -> tuple[str, ...]:
        """Return the launcher with the ranks of a trial, on a free port of this machine."""
        if not line.launcher:
            return ()
        words = list(line.launcher)
        kept: list[str] = []
        while words:
            word = words.pop(0)
            if not _RENDEZVOUS.fullmatch(word.partition("=")[0]):
                kept.append(word)
            elif "=" not in word and words and not words[0].startswith("-"):
                words.pop(0)
        own = [f"{_LAUNCHER_COUNTS[line.launcher_name]}={{rank_count}}"]
        own += ["--standalone"] if line.launcher_name == "torchrun" else []
        return (*kept, *own)

    def _variables(self, line: LaunchLine) -> dict[str, str]:
        """Return the variables of a job: those of the line, then those of the framework."""
        given = line.environment
        path = ":".join(filter(None, (str(line.folder), given.get("PYTHONPATH"))))
        own = {name: value for name, value in given.items() if name != "PYTHONPATH"}
        return {**own, **self.table.environment, "CCLSEARCH_PYTHONPATH": path}

    def without_secrets(self, line: LaunchLine) -> tuple[LaunchLine, list[str]]:
        """Return a line without secrets and without what each trial sets, and what was left out."""
        secret = {n for n, v in line.environment.items() if SECRET.search(n) or _is_token(v)}
        ours = {*WORK_VARIABLES, *map(str.upper, self.table.knobs)}
        set_by_us = {
            name
            for name in line.environment.keys() - secret
            if name in ours or any(fnmatchcase(name, pattern) for pattern in OF_THE_JOB)
        }
        flags, _ = Flags.of(self.name, None)
        kept: list[str] = []
        for flag, value, words in flags.split(line.arguments):
            if value and (_SECRET_FLAG.search(flag.replace("-", "_")) or _is_token(value)):
                secret.add(flag)
            else:
                kept += words
        own = {n: v for n, v in line.environment.items() if n not in secret | set_by_us}
        notes = []
        if secret:
            notes.append(
                f"{', '.join(sorted(secret))} of the launch line: left out as a secret, which no "
                "trial gets and no study records; let the framework read it from a file"
            )
        if set_by_us:
            notes.append(
                f"{', '.join(sorted(set_by_us))} of the launch line: left out, as each trial has "
                "its own"
            )
        return replace(line, arguments=tuple(kept), environment=own), notes

    def refusals(self, study: Study, arguments: Sequence[str]) -> Iterator[str]:
        """Yield why arguments would be refused, crash or be ignored; nothing is asked or launched.

        The study gives the work and the machine.
        """
        flags, _ = Flags.of(self.name, None)
        faults = list(flags.faults(arguments))
        yield from faults
        if faults:
            return
        line = LaunchLine(program=("",), arguments=tuple(arguments), folder=Path())
        given, _ = self._seeds(line, flags, None)
        yield from self.inert(study, given)
        yield from self.broken(study, given)

    def inert(self, study: Study, settings: Mapping[str, Value]) -> Iterator[str]:
        """Yield the settings that have no effect beside the others, with the reason."""
        names = self._names(study, settings)
        for name, value in settings.items():
            knob = self.table.knobs[name]
            if value != knob.default and knob.when and not parse(knob.when).holds(names):
                why = f": {knob.reason}" if knob.reason else ""
                yield f"{name}={value} has no effect unless {knob.when}{why}"

    def broken(self, study: Study, settings: Mapping[str, Value]) -> Iterator[str]:
        """Yield the rules that settings break, as far as the sizes that they name are known."""
        names = self._names(study, settings)
        for rule in self._known_rules(study):
            if (words := rule.broken(names)) is not None:
                yield words

    def _names(self, study: Study, settings: Mapping[str, Value]) -> dict[str, Value | None]:
        """Return what a condition may name: facts of the study, and every knob."""
        own = {name: knob.default for name, knob in self.table.knobs.items()}
        return {**facts(study.workload, study.environment), **own, **settings}

    def _known_rules(self, study: Study) -> tuple[Rule, ...]:
        known = facts(study.workload, study.environment)
        return tuple(
            rule
            for rule in self.rules(study)
            if all(known.get(name, 0) is not None for name in rule.expression.names)
        )

    # The port.

    def complete(self, study: Study) -> Study:
        """Give knobs their conditions and descriptions, and add the rules of the framework."""
        study = super().complete(study)
        wishes = []
        if self.table.rank_count != "world_size" and not self.may_idle(study):
            wishes.append(
                new_rule(
                    "ranks",
                    f"({self.table.rank_count}) == world_size",
                    "the objective does not count ranks, so none is left idle",
                )
            )
        if study.usable_environment.memory_bytes is not None and self.has_sizes(study):
            fits = FITS.get(study.environment.device, FITS["cuda"])
            wishes.append(new_rule("memory", fits, "a larger estimate surely does not fit"))
        rules = self._known_rules(study)
        added = {rule.constraint.name for rule in (*rules, *wishes)} - {RANKS_RULE}
        own = tuple(each for each in study.space.constraints if each.name not in added)
        given = replace(study.space, constraints=own)
        table = KnobTable(replace(study, space=given), self.knobs(study))
        return replace(study, space=table.complete(rules, wishes=wishes))

    def may_idle(self, study: Study) -> bool:
        """Whether a configuration that leaves ranks idle may be the best."""
        return counts_ranks(study)

    def rules(self, study: Study) -> tuple[Rule, ...]:  # noqa: ARG002 - for subclasses
        """Every rule without which a configuration cannot run, or would be another one."""
        return new_rules(self.table.rules)

    def estimate(self, study: Study, config: Config) -> Mapping[str, float] | None:
        """Return what the built-in trainer would take with the same degrees and sizes."""
        settings = {**study.space.defaults, **config.values}
        return estimate_script(
            study.workload,
            study.environment,
            self.meaning(study, settings),
            self.rank_count(study, config),
        )

    def check(self, study: Study) -> None:
        """Raise `StudyError` when the program is missing, or a flag is none of the framework's."""
        super().check(study)
        if study.command is None:
            return
        starts = LaunchLine.of(study.command.run, Path()).launcher_name
        if starts != "torchrun" and study.node_count(study.environment.world_size) > 1:
            raise StudyError(
                f"[environment] world_size {study.environment.world_size} takes several nodes, and "
                f"{starts or 'this program'} starts its ranks on one; start it by torchrun, or set "
                f"world_size to {study.environment.ranks_per_node}"
            )
        flags, _ = Flags.of(self.name, self.version(study))
        defaults = {name: knob.default for name, knob in self.knobs(study).items()}
        for dimension in study.space.dimensions:
            for choice in choices_of(dimension):
                settings = {**defaults, dimension.name: choice}
                words = self.knob_words(study, dimension.name, settings)
                fault = next(flags.faults(words), None)
                if fault is not None:
                    raise StudyError(f"[space] {dimension.name}: {fault}")

    def job(self, study: Study, config: Config) -> Job:
        """Return the job of one configuration, with what times and profiles its steps."""
        job = super().job(study, config)
        if study.node_count(job.world_size) > 1:
            job = replace(job, argv=tuple(w for w in job.argv if not _ON_ONE_NODE.match(w)))
        ours = (Path(__file__).parent / IN_JOB / "hook.py", self._hook)
        hooks = {path.name: path.read_text("utf-8") for path in ours if path.is_file()}
        return replace(
            job,
            argv=self.hooked(LaunchLine.of(job.argv, Path())) if len(hooks) > 1 else job.argv,
            files={**job.files, **hooks, **self.files(study, config)},
        )

    @property
    def _hook(self) -> Path:
        return folder_of(self.name) / IN_JOB / f"hook_{self.name}.py"

    def files(self, study: Study, config: Config) -> Mapping[str, str]:  # noqa: ARG002 - for subclasses
        """Return more files for the folder of the job, such as a changed configuration file."""
        return {}

    def hooked(self, line: LaunchLine) -> tuple[str, ...]:
        """Return the command with the hook in front of the program, which the hook then runs."""
        hook, program = f"hook_{self.name}.py", line.program
        if line.launcher:
            return (*line.launcher, hook, *program, *line.arguments)
        if Path(program[0]).name.startswith("python"):
            at = next((i for i, word in enumerate(program) if i and word == "-m"), len(program) - 1)
            return (*program[:at], hook, *program[at:], *line.arguments)
        # The hook runs the program as a file, which Python does not look for on the PATH.
        path = shutil.which(program[0], path=line.search_path) or program[0]
        return (str(line.python), hook, path, *program[1:], *line.arguments)

    def flags(self, study: Study, config: Config) -> tuple[str, ...]:
        """Return the arguments of a configuration: its knobs, then what holds the work equal."""
        settings = KnobTable(study, self.knobs(study)).live(
            {**study.space.defaults, **config.values}
        )
        return (*self.knob_arguments(study, config), *self.work_words(study, settings))

    def knob_arguments(self, study: Study, config: Config) -> tuple[str, ...]:
        """Return the arguments of the knobs of a configuration."""
        table = KnobTable(study, self.knobs(study))
        settings = table.live({**study.space.defaults, **config.values})
        names = {**facts(study.workload, study.environment), **settings}
        searched = {dimension.name for dimension in study.space.dimensions}
        words: list[str] = []
        for name, knob in self.knobs(study).items():
            is_live = knob.when is None or parse(knob.when).holds(names)
            is_own = name in searched or settings[name] != self.table.knobs[name].default
            if is_live and is_own:
                words += self.knob_words(study, name, settings)
        return tuple(words)

    def knob_words(self, study: Study, name: str, settings: Mapping[str, Value]) -> Sequence[str]:  # noqa: ARG002 - for subclasses
        """Return the arguments of one knob."""
        return self.table.knobs[name].words(settings[name])

    def work_words(self, study: Study, settings: Mapping[str, Value]) -> tuple[str, ...]:  # noqa: ARG002 - for subclasses
        """Return the arguments that hold the work of a step equal."""
        counts = self.counts(study)
        return tuple(word.format_map(counts) for word in self.table.work)

    def counts(self, study: Study) -> dict[str, int]:
        """Return the numbers that `work` may name."""
        measure, work = study.measure, study.workload
        return {
            "warmup": measure.warmup_steps,
            "timed": measure.timed_steps,
            "profiled": measure.profiled_steps,
            "steps": measure.warmup_steps + measure.timed_steps + measure.profiled_steps,
            "global_batch": work.global_batch,
            "sequence_length": work.sequence_length,
            "output_length": work.output_length or 1,
            "seed": work.seed,
        }

    def read(self, study: Study, job: Job, result: JobResult, launched_ns: int) -> Reading | Failed:
        """Read what the job left, and check that each knob took hold."""
        reading = super().read(study, job, result, launched_ns)
        if isinstance(reading, Failed):
            return reading
        settings = {n.lower(): v for n, v in job.environment.items()}
        fault = next(self._without_effect(study, settings, result, reading), None)
        if fault is None:
            return reading
        return Failed(stage=Stage.READ, kind=FailureKind.INVALID_CONFIG, message=fault)

    def _without_effect(
        self, study: Study, settings: Mapping[str, str], result: JobResult, reading: Reading
    ) -> Iterator[str]:
        """Yield each knob that the launch shows no sign of."""
        knobs = self.table.knobs
        values = {
            name: knob.value(settings.get(name, knob.default)) for name, knob in knobs.items()
        }
        names = {**facts(study.workload, study.environment), **values}
        kinds = _collective_kinds(reading)
        for each in self.table.evidence:
            condition = parse(each.when)
            if not condition.holds(names):
                continue
            shown_by = ", ".join(
                f"{n}={values[n]}" for n in sorted(condition.names & values.keys())
            )
            missing = [k for k in each.collectives if kinds is not None and k not in kinds]
            if missing:
                yield (
                    f"{shown_by} did not take hold: the traces show no {' or '.join(missing)}; "
                    f"{each.reason}"
                )
            log = result.workdir / COMMAND_LOG
            if each.log and not re.search(each.log, log.read_text("utf-8", "replace")):
                yield f"{shown_by} did not take hold: {each.reason}, and the log does not say so"

    def has_sizes(self, study: Study) -> bool:
        """Return whether the sizes of the model are known; the knobs always are."""
        settings = {name: knob.default for name, knob in self.knobs(study).items()}
        ranks = study.environment.world_size
        return script_as_builtin(study.workload, self.meaning(study, settings), ranks) is not None


def _is_token(text: str) -> bool:
    """Whether a text holds what has the form of a key or a token."""
    return Scrubber().secrets(text) != text


def _collective_kinds(reading: Reading) -> set[str] | None:
    """Return the kinds of collectives in the traces; None without traces."""
    if reading.traces is None:
        return None
    from evaluator.traces.model import CollectiveKind

    kinds = (int(kind) for trace in reading.traces.ranks for kind in set(trace.collectives.kind))
    return {CollectiveKind(kind).name.lower() for kind in kinds}
