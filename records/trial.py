"""What happened: policies, configurations, outcomes, scores, trials and their repeats, as values.

A score exists exactly when a trial was measured; a failed trial never has one.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, TypeAlias

from records.machine import Conditions, LaunchRecord
from records.study import Value, digest
from records.workload import TrafficPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """A challenger against the trial that led, from launches of both that were interleaved.

    `ratio` is how many times the incumbent's time, or what is compared in its place, the challenger
    takes; below 1 it is the better one. None where no number can be given. `disturbed_count` of
    its rounds were disturbed by other work on the machine.
    """

    challenger: int
    incumbent: int
    verdict: Literal["fast", "slow", "same", "undecided", "unknown"]
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    round_count: int = 0
    disturbed_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """One kind of collective in groups of one shape, per profiled step.

    Groups are of one shape when their ranks are equally many and equally far apart, as those of
    one axis of a mesh. Calls and bytes are of a rank that takes part, at the mean; seconds are the
    mean over all traced ranks, as those of the step, where two concurrent collectives count twice.
    """

    kind: str
    group_size: int | None
    """Ranks of a group; None where unknown."""
    ranks: tuple[int, ...] | None
    """Those of the first such group; None where unknown."""
    group_count: int
    """Groups of this shape that traced ranks use."""
    crosses_nodes: bool | None
    """Whether any of them has ranks on two nodes; None where unknown."""
    call_count: float
    bytes: float | None
    """As nccl-tests count them; None where unknown."""
    exposed_s: float
    hidden_s: float

    @property
    def total_s(self) -> float:
        """Time in it, hidden or not."""
        return self.exposed_s + self.hidden_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Where the profiled steps of a trial went, seconds per step, mean over ranks and steps.

    Compute, exposed communication, copies (with fills, outside both) and idle make up the step;
    hidden communication is within compute. What has no answer is None.
    """

    compute_s: float
    exposed_communication_s: float
    hidden_communication_s: float
    copy_s: float
    idle_s: float
    pipeline_bubble_s: float | None = None
    """Within exposed communication: in transfers between two ranks alone, waiting for a neighbour
    or receiving from it; None where none is sent."""
    host_wait_s: float | None = None
    """Within idle: the host had handed over no work, and did not wait for the device either."""
    collectives: tuple[CollectiveTime, ...] = ()
    """The largest few, by exposed time, then by all of their time."""
    slowest_rank: int | None = None
    """The rank that computes longest."""
    slowest_over_mean: float | None = None
    """Its compute time over the mean of all traced ranks."""
    straggler: int | None = None
    """The rank that the others wait for longest in collectives."""
    straggler_share: float | None = None
    """Part of their step in which the others wait for it and compute nothing."""
    peak_memory_bytes: int | None = None
    """Of the rank that needed most."""
    memory_bytes: int | None = None
    """What that peak may be; None on a host, which limits something else than the peak counts."""
    work_digest: str | None = None
    """Identity of the kernels and collectives that ran, by name, count and bytes; None where
    unknown."""

    @property
    def step_s(self) -> float:
        """The whole profiled step."""
        return self.compute_s + self.exposed_communication_s + self.copy_s + self.idle_s


class Stage(StrEnum):
    """The step of a trial at which it ended."""

    DECIDE = "decide"
    CHECK = "check"
    LAUNCH = "launch"
    READ = "read"
    MEASURE = "measure"
    SCORE = "score"


class FailureKind(StrEnum):
    """Whose doing a failure was."""

    POLICY_ERROR = "policy_error"
    INVALID_CONFIG = "invalid_config"
    DUPLICATE = "duplicate"
    OUT_OF_MEMORY = "out_of_memory"
    CRASH = "crash"
    HANG = "hang"
    INFRASTRUCTURE = "infrastructure"
    NOT_SCHEDULED = "not_scheduled"
    PREEMPTED = "preempted"
    NODE_FAILED = "node_failed"
    METRIC_ERROR = "metric_error"

    @property
    def is_infrastructure(self) -> bool:
        """Whether nothing of it was the configuration's doing: launch it again, learn nothing."""
        return self in _INFRASTRUCTURE


_SEPARATE = "the ranks communicated nothing in the traced steps, so they may train separately"
_INFRASTRUCTURE = frozenset(
    {
        FailureKind.INFRASTRUCTURE,
        FailureKind.NOT_SCHEDULED,
        FailureKind.PREEMPTED,
        FailureKind.NODE_FAILED,
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class Config:
    """One validated point of a space, read-only, knobs in alphabetical order."""

    values: Mapping[str, Value]
    _digest: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", dict(sorted(self.values.items())))

    def __getitem__(self, knob: str) -> Value:
        return self.values[knob]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """Identity of the point: equal settings have equal digests, 4 and 4.0 and True differ."""
        # Kept, because searches look configurations up by the thousand; made when first asked
        # for, because they list more of them than they look up.
        if not self._digest:
            text = json.dumps(self.values, separators=(",", ":"))
            object.__setattr__(self, "_digest", digest(text))
        return self._digest

    def __str__(self) -> str:
        return " ".join(f"{knob}={value}" for knob, value in self.values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the author of a policy expected: how many times as good as trial `over` it would be."""

    speedup: float
    over: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The text of a program with `generate_config(workload, environment)`, and its origin."""

    source: str
    author: str
    parent: str | None = None
    rationale: str = ""
    prediction: Prediction | None = None

    @property
    def digest(self) -> str:
        """Identity of the program text."""
        return digest(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file kept for a trial, addressed by the SHA-256 of its content."""

    name: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """One number about a trial, with the version of the definition that made it."""

    name: str
    value: float
    unit: str
    better: Literal["lower", "higher"]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How the requests of each timed step were answered: seconds, shaped (ranks, steps).

    Each number is the mean over the requests that the rank took part in. All requests are there
    when the step starts, so the first token's time includes waiting for those served earlier.
    """

    first_token_times_s: tuple[tuple[float, ...], ...]
    next_token_times_s: tuple[tuple[float, ...], ...] | None
    """Per token after the first; `None` where answers have one token."""
    output_tokens_per_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds that half of the requests, and 99 % of them, took at most."""

    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficResult:
    """How a server answered its requests at one traffic point, as its clients saw it.

    `tpot` is the mean time per token after the first of each request, `itl` the time of each such
    token; both are None where answers have one token. `goodput` counts the requests per second
    that were served within the workload's objective; None where it has none.
    """

    point: TrafficPoint
    request_count: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft: Latency
    tpot: Latency | None
    itl: Latency | None
    goodput: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Samples of one launch; step times in seconds shaped (ranks, steps).

    `serving` is `None` where nothing was served, `conditions` where they were not observed. Either
    all steps were `profiled` or none: a script that reports no step times has those of its traces.
    `tokens_verified` is whether the job reported its tokens per step. Times that a script `printed`
    are those of the job, given to each rank.
    """

    step_times_s: tuple[tuple[float, ...], ...]
    warmup_times_s: tuple[tuple[float, ...], ...]
    losses: tuple[float, ...]
    tokens_per_step: int
    peak_memory_bytes: tuple[int, ...]
    wall_s: float | None
    device: str
    torch_version: str | None
    serving: Serving | None = None
    traffic: tuple[TrafficResult, ...] = ()
    """Of a server at each traffic point, in the order of the workload's."""
    profiled: bool = False
    tokens_verified: bool = True
    printed: bool = False
    conditions: Conditions | None = None
    stopped: Literal["precise", "most_steps", "slower"] | None = None
    """Why no more steps were timed, `slower` than asked for; None where their number was fixed."""
    turn_steps: tuple[int, ...] = ()
    """Steps of each turn, where this launch took turns with others on the same machine."""
    message_times_s: tuple[float, ...] = ()
    """Seconds that each of the workload's messages took, over its calls in a step: median over the
    steps of the slowest rank. Empty where several messages are not timed one by one."""
    energy_j: float | None = None
    """Joules that all devices used in the timed steps; None where NVML reports none."""
    beside_count: int = 0
    """Other trials that were measured on the same machine meanwhile."""
    imported: bool = False
    """Whether it is one number out of another tool's record, given as the one step there is."""
    failed_at_exit: str | None = None
    """How the job failed after it had reported all its steps; None where it ended well."""
    varies_work: bool = False
    """Whether a step processed other tokens than the study's workload, as its objective allows."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the job's own Python and frameworks, by name, as far as it reported them."""
    grad_norms: tuple[float, ...] = ()
    """Norm of all gradients in each step that it was reported for, before any clipping."""
    compute_precision: str | None = None
    """Number format that matrices were multiplied in, where it is not the workload's."""
    ranks_are_separate: bool = False
    """Whether the traces of several ranks show no communication at all."""

    @property
    def slowest_rank_s(self) -> tuple[float, ...]:
        """Step time of the job, per step: that of its slowest rank."""
        return tuple(max(step) for step in zip(*self.step_times_s, strict=True))

    @property
    def caveats(self) -> tuple[str, ...]:
        """Caveats about these samples, as text to show with a score."""
        unverified = "tokens per step declared, not verified"
        profiled = "timed in profiled steps, which the profiler slows down"
        printed = "step times as the script printed them"
        slower = "stopped early, clearly slower than the best"
        if self.conditions is not None and self.conditions.disturbances:
            slower = "stopped early, slower than the best, while other work disturbed it"
        varied = f"{self.tokens_per_step} tokens per step, compared per token"
        others = f"{self.beside_count} other trial{'s'[: self.beside_count - 1]}"
        imported = "one number recorded elsewhere, without samples"
        at_exit = f"the job failed while it ended, all steps done: {self.failed_at_exit}"
        return (
            *((imported,) if self.imported else ()),
            *((varied,) if self.varies_work else ()),
            *((_SEPARATE,) if self.ranks_are_separate else ()),
            *((unverified,) if not self.tokens_verified else ()),
            *((profiled,) if self.profiled else ()),
            *((printed,) if self.printed else ()),
            *((slower,) if self.stopped == "slower" else ()),
            *((f"measured in parallel with {others}",) if self.beside_count else ()),
            *((at_exit,) if self.failed_at_exit is not None else ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where a profiled step went, seconds per step, mean over ranks and steps.

    Compute, exposed communication, other (copies and fills outside both) and idle make up the
    step; hidden communication is within compute.
    """

    compute_s: float
    exposed_communication_s: float
    hidden_communication_s: float
    other_s: float
    idle_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A trial that ran and was measured; `absent` says why a metric has no value, by name."""

    measurement: Measurement
    metrics: tuple[MetricValue, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    breakdown: Breakdown | None = None
    diagnosis: Diagnosis | None = None
    artifacts: tuple[Artifact, ...] = ()
    contexts: tuple["ContextOutcome", ...] = ()
    """Where a study has several: the launch in each, of which the metrics are the means."""
    launched: LaunchRecord | None = None
    """None of what was recorded earlier, or elsewhere."""
    status: Literal["measured"] = "measured"

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Samples of every launch: of each context, where a study has several."""
        each = tuple(
            one.outcome.measurement for one in self.contexts if isinstance(one.outcome, Measured)
        )
        return each or (self.measurement,)

    def metric(self, name: str) -> float | None:
        """Value of a metric, or None when this trial could not answer it."""
        return next((m.value for m in self.metrics if m.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A trial that went wrong: where, whose doing, and the first cause in one line."""

    stage: Stage
    kind: FailureKind
    message: str
    artifacts: tuple[Artifact, ...] = ()
    contexts: tuple["ContextOutcome", ...] = ()
    """Where a study has several: the launches up to the one that failed."""
    launched: LaunchRecord | None = None
    """None of what was not launched, or was recorded earlier, or elsewhere."""
    status: Literal["failed"] = "failed"

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


Outcome: TypeAlias = Measured | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOutcome:
    """How the launch in one of several contexts ended; its files are among those of the whole."""

    name: str
    outcome: Outcome


CONTEXTS_FOLDER = "contexts"
"""The folder with the files of the other contexts, by name."""


def outcome_in(outcome: Outcome, name: str) -> Outcome | None:
    """Return the outcome in the context with this name, or None."""
    return next((one.outcome for one in outcome.contexts if one.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """`cost` is what is compared, lower is better; `value` and `unit` are what was asked for.

    `broken` are the limits of the study that the trial breaks, as text: such a trial is never best.
    """

    cost: float
    value: float
    unit: str
    broken: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.cost) and math.isfinite(self.value)):
            raise ValueError(f"a score of {self.value} (cost {self.cost}) must be finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One turn of the search; `exchange` addresses the LLM conversation that proposed it.

    `lost_launches` are those of its attempts that the infrastructure ended and that were repeated,
    by how each failed.
    """

    ordinal: int
    policy: Policy
    config: Config | None
    outcome: Outcome
    score: Score | None
    started_at: str
    ended_at: str
    attempts: int = 1
    exchange: str | None = None
    lost_launches: tuple[FailureKind, ...] = ()

    def __post_init__(self) -> None:
        if (self.score is not None) != isinstance(self.outcome, Measured):
            raise ValueError(f"trial {self.ordinal}: a score exists exactly when it was measured")

    @property
    def reached_launch(self) -> bool:
        """Whether a launch was attempted, however it ended."""
        match self.outcome:
            case Failed(stage=Stage.DECIDE | Stage.CHECK):
                return False
            case _:
                return True

    @property
    def launched(self) -> bool:
        """Whether a launch ended by the configuration's own doing: what the budget counts."""
        match self.outcome:
            case Failed(kind=kind) if kind.is_infrastructure:
                return False
            case _:
                return self.reached_launch


class Purpose(StrEnum):
    """Why an earlier trial's configuration was repeated."""

    SELF_TEST = "self_test"
    RACE = "race"
    HALVING = "halving"
    CONFIRM = "confirm"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A fresh launch of an earlier trial's configuration, in a round with others or alone.

    `series` is the number of trials that were finished before it; `round` counts from 0 within the
    series, `position` from 0 within the round.
    """

    series: int
    round: int
    ordinal: int
    outcome: Outcome
    purpose: Purpose = Purpose.CONFIRM
    position: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """The trials of a study, oldest first: the only view of the past that a proposer gets.

    Of trials measured in parallel a later one may end first: until the others have, ordinals
    have gaps.

    `costs` are those of repeated trials, by ordinal, which count more than that of the first
    launch; `again` are the values that the repeats gave the objective. `incumbent` is the trial
    that was shown to be the best, None while nothing was: then the lowest cost leads. `pending` are
    configurations that are being measured, `races` the results of races in the order in which they
    were run, and `repeats` the repeated launches that count. `front` are the ordinals of trials
    that no other beats in all of several objectives, best in the main one first; `weights` say by
    how much each objective counts where `costs` stand for all of them.
    """

    trials: tuple[Trial, ...] = field(default=())
    costs: Mapping[int, float] = field(default_factory=dict)
    incumbent: int | None = None
    pending: tuple[Config, ...] = ()
    races: tuple[RaceResult, ...] = ()
    repeats: tuple[Repeat, ...] = ()
    front: tuple[int, ...] = ()
    weights: tuple[tuple[str, float], ...] = ()
    again: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.trials)

    def append(self, trial: Trial) -> "History":
        """Return the history with one more trial in its place, no longer pending."""
        return replace(
            self,
            trials=tuple(sorted((*self.trials, trial), key=lambda each: each.ordinal)),
            pending=tuple(config for config in self.pending if config != trial.config),
        )

    def before(self, ordinal: int) -> "History":
        """Return the history with the trials before this one only."""
        return replace(self, trials=tuple(t for t in self.trials if t.ordinal < ordinal))

    def find(self, ordinal: int) -> Trial | None:
        """The trial with this ordinal; None while it has not ended, though later ones may have."""
        return next((trial for trial in self.trials if trial.ordinal == ordinal), None)

    @property
    def measured(self) -> tuple[Trial, ...]:
        """Trials with a score."""
        return tuple(trial for trial in self.trials if trial.score is not None)

    @property
    def launched_count(self) -> int:
        """Launches to charge to the budget."""
        return sum(trial.launched for trial in self.trials)

    @property
    def admissible(self) -> tuple[Trial, ...]:
        """Measured trials that break no limit."""
        return tuple(t for t in self.measured if t.score is not None and not t.score.broken)

    @property
    def ranked(self) -> tuple[Trial, ...]:
        """Admissible trials, best first; ties keep their order."""
        return tuple(sorted(self.admissible, key=self._rank))

    @property
    def best(self) -> Trial | None:
        """The incumbent, or else the admissible trial with the lowest cost."""
        return min(self.admissible, key=self._rank, default=None)

    def cost(self, trial: Trial) -> float:
        """Cost of a measured trial by all that is known, lower is better."""
        if trial.score is None:
            raise ValueError(f"trial {trial.ordinal} has no score")
        return self.costs.get(trial.ordinal, trial.score.cost)

    def values(self, trial: Trial) -> tuple[float, ...]:
        """Objective of a trial in each launch that counts; empty where it has no score."""
        if trial.score is None:
            return ()
        return self.again.get(trial.ordinal) or (trial.score.value,)

    def _rank(self, trial: Trial) -> tuple[bool, float]:
        return trial.ordinal != self.incumbent, self.cost(trial)

    def tried(self, config: Config) -> Trial | None:
        """The launched trial of this configuration, if there is one."""
        same = (t for t in self.trials if t.launched and t.config == config)
        return next(same, None)
