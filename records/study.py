"""What is searched: workload, environment, space, objective, budget and measurement, as values.

Knows nothing of how a configuration is launched or where a trial is stored.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, TypeAlias

from records.errors import Strict, StudyError, above_zero, at_least, at_most, shown
from records.llm_exchange import TokenUsage
from records.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Price(Strict):
    """USD per million tokens; where nothing is said of a cache, its tokens cost what input does."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        at_least("llm.price", 0, input=self.input, output=self.output)
        at_least("llm.price", 0, cache_read=self.cache_read, cache_write=self.cache_write)

    def cost_usd(self, usage: TokenUsage) -> float:
        """What these tokens cost."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        return (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + usage.cache_read_tokens * read
            + usage.cache_write_tokens * write
        ) / 1e6


Kind: TypeAlias = Literal["ccl-search", "jsonl", "optuna", "bundle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What was imported, and what its own tool said of it.

    `digests` are the SHA-256 of the files it was read from, by name. `dead_knobs` had no effect on
    what was launched, whatever they were set to. `direction` is which way the tool's own score is
    better; that score is the metric `published_score` of a trial. `notes` say what was lost or
    taken for granted, one sentence each.
    """

    kind: Kind
    source: str
    digests: Mapping[str, str] = field(default_factory=dict)
    framework: str | None = None
    dead_knobs: tuple[str, ...] = ()
    direction: Literal["minimize", "maximize"] | None = None
    notes: tuple[str, ...] = ()


Value: TypeAlias = bool | int | float | str
"""What a knob can be set to."""

LOCAL = "local"
"""The launcher that starts ranks on this machine."""
MIN_TIMED_STEPS = 5
MOST_RANKS = 1 << 20
MOST_CONTEXTS = 256
LEAST_THINKING_TOKENS = 1024
MAX_CHOICES = 4096
MEASURE = "measure"
"""The strategy of a study that searches nothing: it holds launches that check another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(Strict):
    """One kind of connection between accelerators."""

    bandwidth_bytes_per_s: float
    latency_s: float | None = None

    def __post_init__(self) -> None:
        above_zero("environment", bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)
        at_least("environment", 0, latency_s=self.latency_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(Strict):
    """The machine a study may use; `world_size` is the number of ranks it can hold."""

    name: str
    device: Literal["cpu", "cuda", "tpu"]
    accelerator: str
    world_size: int
    ranks_per_node: int
    memory_bytes: int | None = None
    scale_up: Link | None = None
    scale_out: Link | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    accelerator_usd_per_hour: float | None = None
    topology: str | None = None
    """How the nodes of a cluster are connected, in words; found in each run where not given."""

    def __post_init__(self) -> None:
        at_least("environment", 1, world_size=self.world_size, ranks_per_node=self.ranks_per_node)
        at_most("environment", MOST_RANKS, world_size=self.world_size)
        at_least("environment", 1, memory_bytes=self.memory_bytes)
        above_zero("environment", accelerator_usd_per_hour=self.accelerator_usd_per_hour)

    @property
    def node_count(self) -> int:
        """Nodes that hold all ranks."""
        return -(-self.world_size // self.ranks_per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Strict):
    """Evenly spaced (`step`) or doubling values from `low` to `high`, both included."""

    low: int | float
    high: int | float
    step: int | float | None = None
    scale: Literal["linear", "doubling"] = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension(Strict):
    """One knob: its choices or range, and the condition under which it has an effect."""

    name: str
    choices: tuple[Value, ...] | None = None
    range: Range | None = None
    when: str | None = None
    description: str = ""

    def __post_init__(self) -> None:
        if self.choices is not None and len(self.choices) > MAX_CHOICES:
            count = len(self.choices)
            raise StudyError(f"[space] {self.name!r}: {count} choices are more than {MAX_CHOICES}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint(Strict):
    """A named predicate over knobs, workload and environment that a configuration must satisfy."""

    name: str
    expression: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace(Strict):
    """The knobs and the rules between them.

    `defaults` are values of knobs that a configuration may leave out, because they are not searched
    or have no effect; rules may name them.
    """

    dimensions: tuple[Dimension, ...]
    constraints: tuple[Constraint, ...] = ()
    defaults: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(Strict):
    """A metric name or an expression over metrics; without a direction the metrics' own holds."""

    expression: str
    direction: Literal["minimize", "maximize"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Strict):
    """When to stop; `trials` counts launches that ended by the configuration's own doing.

    A search also stops where its model expects no more gain, or instead after `patience` measured
    trials in a row without improvement, if given. It stops after `max_failures` failed trials in a
    row, of which those out of memory do not count once a trial was measured.
    `launches` limits all launches together, those too that repeat earlier trials; without it, they
    may be four for each trial and 16. `max_node_hours` limits how long the nodes are held, added up
    over them and over all runs of the study. `max_tokens` and `max_cost_usd` limit what the model
    may be asked: beyond them the search continues without it.
    """

    trials: int = 40
    launches: int | None = None
    patience: int | None = None
    max_failures: int = 6
    max_wall_s: float | None = None
    max_node_hours: float | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None

    def __post_init__(self) -> None:
        at_least("budget", 1, trials=self.trials, patience=self.patience)
        at_least("budget", 1, max_failures=self.max_failures)
        at_least("budget", 1, launches=self.launches)
        at_least("budget", 0, max_tokens=self.max_tokens, max_cost_usd=self.max_cost_usd)
        above_zero("budget", max_wall_s=self.max_wall_s, max_node_hours=self.max_node_hours)

    @property
    def launch_limit(self) -> int:
        """Most launches of the whole study."""
        return 4 * self.trials + 16 if self.launches is None else self.launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(Strict):
    """How one launch is sampled, and how launches are repeated until the sides differ clearly.

    A launch times `timed_steps`, then more, at most `max_timed_steps`, until the 95 % interval of
    its median is within `step_precision` of it. It stops early when its steps are clearly above
    `stop_above_s`, which the search sets to `race_ratio` times the best. Where two configurations
    fit on the machine together, `together` lets their steps take turns. A difference below `margin`
    is none in practice; `alpha` is how often a claim may be wrong.
    """

    warmup_steps: int = 2
    timed_steps: int = 5
    max_timed_steps: int = 20
    step_precision: float = 0.03
    stop_above_s: float | None = None
    profiled_steps: int = 1
    timeout_s: float = 120.0
    hang_after_s: float = 30.0
    infrastructure_retries: int = 2
    self_test_rounds: int = 2
    race_ratio: float = 1.5
    race_rounds: int = 4
    confirm_top: int = 4
    confirm_rounds: int = 4
    max_confirm_rounds: int = 12
    margin: float = 0.01
    alpha: float = 0.05
    together: Literal["auto", "never"] = "auto"

    def __post_init__(self) -> None:
        at_least("measure", MIN_TIMED_STEPS, timed_steps=self.timed_steps)
        at_least("measure", 1, warmup_steps=self.warmup_steps, timeout_s=self.timeout_s)
        at_least("measure", 1, hang_after_s=self.hang_after_s, race_ratio=self.race_ratio)
        at_least("measure", 0, profiled_steps=self.profiled_steps)
        at_least("measure", 0, infrastructure_retries=self.infrastructure_retries)
        at_least("measure", 0, confirm_top=self.confirm_top, confirm_rounds=self.confirm_rounds)
        at_least("measure", 0, self_test_rounds=self.self_test_rounds)
        at_least("measure", 0, race_rounds=self.race_rounds, margin=self.margin)
        above_zero("measure", step_precision=self.step_precision, alpha=self.alpha)
        above_zero("measure", stop_above_s=self.stop_above_s)
        if self.alpha >= 0.5:
            raise StudyError(f"[measure] alpha is {self.alpha}; it must be below 0.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(Strict):
    """Which recipe turns a configuration into a job, who launches it, and what a rank may use.

    `python` is the Python of ranks of ours, with its torch; None for the one that runs cclsearch.
    With `isolate`, jobs get a higher priority than other work on this machine.
    """

    recipe: str = "builtin"
    launcher: str = LOCAL
    python: str | None = None
    memory_budget_bytes: int | None = None
    threads_per_rank: int = 1
    start: Literal["warm", "cold"] = "warm"
    isolate: bool = False

    def __post_init__(self) -> None:
        at_least("launch", 1, memory_budget_bytes=self.memory_budget_bytes)
        at_least("launch", 1, threads_per_rank=self.threads_per_rank)
        if self.python == "":
            raise StudyError("[launch] python is empty; give the path of a Python, or leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Strict):
    """The nodes that a launcher other than `local` asks for, and how long to wait for them.

    Without `nodes` they are as many as the ranks of the environment need. `shared_dir` is a folder
    that has the same path here and on every node; None for the store's. `time_limit_s` is what the
    scheduler is asked for. `queue_limit_s` is the longest wait for nodes, `start_limit_s` that for
    agents on them. `search_host` is the name by which nodes reach this machine, `python` what runs
    the agent on a node; None for the same as here. `test_nodes` is whether nodes are compared
    before a search. Nodes reduce most traces of jobs of more ranks than `whole_traces`. `options`
    go to the scheduler as they are; `address` is that of its server, `executor` the one below
    PSI/J. `runtime` is what pods are made from, and `volume_claim` what holds `shared_dir` in them.
    """

    nodes: int | None = None
    shared_dir: str | None = None
    hosts: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    namespace: str | None = None
    image: str | None = None
    address: str | None = None
    executor: str | None = None
    runtime: str | None = None
    volume_claim: str | None = None
    options: tuple[str, ...] = ()
    time_limit_s: float | None = None
    queue_limit_s: float = 3600.0
    start_limit_s: float = 300.0
    search_host: str | None = None
    python: str | None = None
    test_nodes: bool = True
    whole_traces: int = 64

    def __post_init__(self) -> None:
        at_least("cluster", 1, nodes=self.nodes, whole_traces=self.whole_traces)
        above_zero("cluster", time_limit_s=self.time_limit_s)
        above_zero("cluster", queue_limit_s=self.queue_limit_s, start_limit_s=self.start_limit_s)
        for name in (*self.hosts, *self.exclude):
            if not re.fullmatch(r"[\w.@:\[\]-]+", name) or name.startswith("-"):
                raise StudyError(f"[cluster] {shown(name)} is no name of a host")
        if self.shared_dir is not None and not self.shared_dir.startswith(("/", "~")):
            raise StudyError(
                f"[cluster] shared_dir is {self.shared_dir!r}; it must be an absolute path, which "
                "is the same on every node"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Strict):
    """How the `command` recipe starts a script of the user's, and with which variables.

    `export` renames the variables of knobs, which are the knobs in upper case; `booleans` is how
    true and false are spelled in them. `inherit` lists our variables that the script may see.
    `step_time` finds the step times that an unchanged script prints: a regular expression whose
    group is named after the unit, as in `step took (?P<ms>[0-9.]+)`.
    `file_digests` are the SHA-256 of the files in `run`, by path, as the study was given them.
    """

    run: tuple[str, ...]
    trace_files: tuple[str, ...] = ("*.json", "*.json.gz", "*.xplane.pb")
    rank_count: str | None = None
    booleans: tuple[str, str] = ("true", "false")
    export: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    inherit: tuple[str, ...] = ()
    step_time: str | None = None
    file_digests: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.run or not all(self.run):
            raise StudyError('[command] run names no program; give words, as in ["bash", "run.sh"]')
        if not all(self.trace_files):
            raise StudyError("[command] trace_files holds an empty pattern")
        if self.step_time is not None:
            _check_step_time(self.step_time)


TIME_UNITS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def _check_step_time(expression: str) -> None:
    try:
        names = re.compile(expression).groupindex
    except re.error as error:
        raise StudyError(f"[command] step_time is not a regular expression: {error}") from error
    if len(names.keys() & TIME_UNITS) != 1:
        raise StudyError(
            "[command] step_time must name the number by its unit: (?P<s>...), (?P<ms>...) or "
            "(?P<us>...), as in 'step took (?P<ms>[0-9.]+)'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Llm(Strict):
    """Which model writes policies; the key is never part of a study.

    A reply that is cut is asked for again with `most_output_tokens`. Without `effort` and
    `thinking_tokens` the provider decides how much the model thinks. `timeout_s` is the longest
    silence within a reply. `price` comes before the known one of the model.
    """

    model: str = "claude-opus-5-5"
    base_url: str | None = None
    timeout_s: float = 600.0
    max_output_tokens: int = 8192
    most_output_tokens: int = 16384
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    thinking_tokens: int | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        above_zero("llm", timeout_s=self.timeout_s)
        at_least("llm", 1, max_output_tokens=self.max_output_tokens)
        at_least("llm", 1, most_output_tokens=self.most_output_tokens)
        at_least("llm", LEAST_THINKING_TOKENS, thinking_tokens=self.thinking_tokens)
        if self.thinking_tokens is not None and self.thinking_tokens >= self.max_output_tokens:
            raise StudyError(
                f"[llm] thinking_tokens is {self.thinking_tokens}; it must be below "
                f"max_output_tokens, which is {self.max_output_tokens} and includes them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior(Strict):
    """Step times that a tool of others predicted before any launch; knowledge, never a result.

    `source` is the tool, its version and its data. It was asked for every setting of the `knobs` on
    one kind of `accelerator`; `seconds` are those of each of the `parts` of a step, by the values
    of the knobs as JSON. Where it says that a model does not fit, there are none.
    """

    source: str
    accelerator: str
    knobs: tuple[str, ...]
    parts: tuple[str, ...]
    seconds: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        for key, values in self.seconds.items():
            if values and (len(values) != len(self.parts) or min(values) < 0):
                raise StudyError(f"[prior] {shown(key)} has other than {len(self.parts)} times")

    def key(self, settings: Mapping[str, Value]) -> str:
        """Return what the times of a configuration are found by."""
        return json.dumps([settings.get(name) for name in self.knobs])

    def parts_s(self, settings: Mapping[str, Value]) -> Mapping[str, float] | None:
        """Return the seconds of each part; those of the slowest, doubled, where nothing fits."""
        times_s = self.seconds.get(self.key(settings))
        if times_s == ():
            slowest = max(self.seconds.values(), key=sum)
            times_s = tuple(2 * time_s for time_s in slowest)
        return dict(zip(self.parts, times_s, strict=True)) if times_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierBest(Strict):
    """The best configuration of an earlier study: a candidate, never a result.

    It was `speedup` times as good as the seed of that study, whose work `differs` in so much, as in
    `hidden_size 512 not 256`; empty where it was the same.
    """

    study: str
    settings: Mapping[str, Value]
    speedup: float
    differs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Strict):
    """Other work, or another machine, for which the study's policies have to decide as well.

    What is `held_out` is not launched while searching, only at the end. `space` is the study's with
    what its recipe knows about this context; None before the recipe was asked.
    """

    name: str
    workload: Workload
    environment: Environment
    held_out: bool = False
    space: SearchSpace | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]*", self.name):
            raise StudyError(
                f"[context] name is {self.name!r}; it must be of letters, digits, - and _"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Strict):
    """Everything that defines one search."""

    name: str
    workload: Workload
    environment: Environment
    space: SearchSpace
    objective: Objective
    seed_policy: str
    budget: Budget = field(default_factory=Budget)
    measure: Measure = field(default_factory=Measure)
    launch: Launch = field(default_factory=Launch)
    cluster: Cluster | None = None
    command: Command | None = None
    llm: Llm = field(default_factory=Llm)
    strategy: str = "auto"
    random_seed: int = 42
    parallel: int = 1
    """Trials measured in parallel, where the environment has room for them."""
    revoked: tuple[str, ...] = ()
    """Names of constraints that were learned from failures and that a person took back."""
    replay_of: str | None = None
    """Id of the study whose policies the strategy `replay` launches again, or whose trials the
    strategy `measure` does, to see whether their results hold."""
    more_objectives: tuple[Objective, ...] = ()
    """With them no configuration is best in all, so the search looks for a front."""
    limits: tuple[str, ...] = ()
    """What a measured trial must satisfy to lead, as in `peak_memory < 30 GiB`."""

    contexts: tuple[Context, ...] = ()
    """What policies decide for in addition to the study's own workload and environment."""
    origin: Origin | None = None
    """Where an imported study comes from; None of our own."""
    inferences: tuple[str, ...] = ()
    """What a card did not state and was concluded from the rest of it, one sentence each."""
    prior: Prior | None = None
    """What another tool predicts, in place of our own estimate."""
    earlier: tuple[EarlierBest, ...] = ()
    """What studies of like work found on this machine, the most alike first."""

    def __post_init__(self) -> None:
        if self.parallel < 1:
            raise StudyError(f"parallel is {self.parallel}; it must be at least 1")
        if len(self.contexts) > MOST_CONTEXTS:
            raise StudyError(
                f"[context] {len(self.contexts)} contexts are more than {MOST_CONTEXTS}"
            )
        names = [self.name, *(context.name for context in self.contexts)]
        for name in names:
            if names.count(name) > 1:
                raise StudyError(f"[context] {name!r} names two contexts, or one and the study")

    @property
    def is_local(self) -> bool:
        """Whether its ranks are started on this machine."""
        return self.launch.launcher == LOCAL

    def node_count(self, rank_count: int) -> int:
        """Return how many nodes this many ranks take; on this machine one, however they connect."""
        return 1 if self.is_local else -(-rank_count // self.environment.ranks_per_node)

    @property
    def is_from_bundle(self) -> bool:
        """Whether it was imported from a bundle."""
        return self.origin is not None and self.origin.kind == "bundle"

    @property
    def searched_elsewhere(self) -> bool:
        """Whether another tool conducted the search: its record does not say how to launch."""
        return self.origin is not None and self.origin.kind != "bundle"

    @property
    def usable_environment(self) -> Environment:
        """The environment as policies and constraints see it: memory is what a rank may use."""
        budget = self.launch.memory_budget_bytes
        return (
            self.environment if budget is None else replace(self.environment, memory_bytes=budget)
        )


def digest(text: str) -> str:
    """SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


MAX_NUMBER = 2**63


def choices_of(dimension: Dimension) -> tuple[Value, ...]:
    """Every value of a dimension, all of one type; raises `StudyError` when it is malformed."""
    where = f"[space] {dimension.name!r}"
    if (dimension.choices is None) == (dimension.range is None):
        raise StudyError(f"{where}: give either choices or a range")
    choices = dimension.choices if dimension.range is None else _numbers(dimension.range, where)
    if not choices:
        raise StudyError(f"{where} lists no choices; give at least one")
    if all(type(choice) in {int, float} for choice in choices) and any(
        isinstance(choice, float) for choice in choices
    ):
        choices = tuple(float(choice) for choice in choices)
    if len({type(choice) for choice in choices}) > 1:
        raise StudyError(f"{where} mixes types in {list_words(choices)}; use one type")
    if len(set(choices)) < len(choices):
        raise StudyError(f"{where} repeats a choice in {list_words(choices)}")
    return choices


def list_words(choices: Sequence[Value]) -> str:
    """Choices as a list, cut when it is long."""
    shown = ", ".join(repr(choice) for choice in choices[:20])
    return f"[{shown}{', ...' if len(choices) > 20 else ''}]"


def _numbers(span: Range, where: str) -> tuple[Value, ...]:
    if not all(abs(end) < MAX_NUMBER for end in (span.low, span.high)):
        raise StudyError(f"{where}: a range must fit in 64 bits, not {span.low} to {span.high}")
    if span.low > span.high:
        raise StudyError(f"{where}: range low {span.low} is above high {span.high}")
    step = 1 if span.step is None else span.step
    if not 0 < step < MAX_NUMBER:
        raise StudyError(f"{where}: range step {step} is not positive and finite")
    if span.scale == "doubling" and (span.low <= 0 or span.step is not None):
        raise StudyError(f"{where}: a doubling range needs low > 0 and takes no step")
    # As the range is written, not as floats add up: three steps of 0.1 are 0.3.
    low, high, apart = (Fraction(repr(n)) for n in (span.low, span.high, step))
    numbers = (
        low * 2**i if span.scale == "doubling" else low + apart * i for i in itertools.count()
    )
    listed = tuple(
        itertools.islice(itertools.takewhile(lambda n: n <= high, numbers), MAX_CHOICES + 1)
    )
    if len(listed) > MAX_CHOICES:
        raise StudyError(f"{where}: range has more than {MAX_CHOICES} values; give a larger step")
    whole = isinstance(span.low, int) and isinstance(step, int)
    return tuple(int(number) if whole else float(number) for number in listed)
