"""TrialRunner: decide, launch and score one trial, in all contexts of a study.

`precheck` checks a policy before it becomes a trial. `Phases` passes phases to the
thread that waits for it. `ContextEvaluator` turns launches in several contexts into one outcome.
"""

import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_exponential

from evaluator.launchers.interleaved import fits_together
from evaluator.ports import PhaseListener
from evaluator.samples import other_work
from records.codec import utc_now, with_texts
from records.errors import StoreError
from records.llm_exchange import LlmExchange
from records.scrub import Scrubber
from records.store.rows import PendingTrial
from records.store.store import Store
from records.study import Study
from records.trial import (
    CONTEXTS_FOLDER,
    Config,
    ContextOutcome,
    Failed,
    FailureKind,
    History,
    Measured,
    MetricValue,
    Outcome,
    Policy,
    Purpose,
    Stage,
    Trial,
)
from search.loop.leader import is_step_time
from search.loop.ports import Evaluator, Observer, scrub_files
from search.study.spaces import PreparedStudy, in_context, parts


def precheck(prepared: PreparedStudy, policy: Policy, history: History) -> Config | str:
    """Return the configuration that a trial would launch, or why there is none.

    Raises `EnvironmentFault` when this machine cannot isolate policies.
    """
    from search.loop.learned import learned_constraints

    config = prepared.decide(policy)
    if isinstance(config, Failed):
        is_fault = config.kind is FailureKind.POLICY_ERROR
        return f"the policy failed: {config.message}" if is_fault else config.message
    duplicate = duplicate_of(config, history)
    if duplicate is not None:
        return duplicate
    for rule in learned_constraints(prepared.space, history, prepared.study.revoked):
        broken = rule.breaks(config)
        if broken is not None:
            trials = ", ".join(f"#{ordinal}" for ordinal in rule.ordinals)
            return f"every trial like this ended in {rule.kind} ({trials}): {broken}"
    return config


def duplicate_of(config: Config, history: History) -> str | None:
    """Return which trial launched or measures the same configuration, with its result."""
    earlier = history.tried(config)
    if earlier is None:
        pending = "same configuration as a trial that is being measured"
        return pending if config in history.pending else None
    if isinstance(earlier.outcome, Failed):
        result = f"ended in {earlier.outcome}"
    else:
        score = earlier.score
        result = f"scored {score.value:.6g} {score.unit}" if score else "was measured"
    return f"same configuration as trial {earlier.ordinal}, which {result}"


class Phases:
    """Passes each phase to the listener of the thread that waits for the launch."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def __call__(self, name: str) -> None:
        """Report a phase of the launch that this thread waits for."""
        listener: PhaseListener | None = getattr(self._of_thread, "listener", None)
        if listener is not None:
            listener(name)

    @contextmanager
    def listen_with(self, listener: PhaseListener) -> Iterator[None]:
        """Pass the phases of this thread's launches to `listener` inside the context."""
        before = getattr(self._of_thread, "listener", None)
        self._of_thread.listener = listener
        try:
            yield
        finally:
            self._of_thread.listener = before


@dataclass(frozen=True, slots=True)
class ContextEvaluator:
    """Launches a configuration in every context of a study.

    A failure in one context fails the trial. Otherwise each metric is the geometric mean over the
    contexts, so the ratio of two trials is the mean of their ratios. Samples, breakdown and
    diagnosis are those of the study's own context.
    """

    each: Evaluator

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:
        """Launch in `workdir`, an empty folder."""
        if not study.contexts:
            return self.each.evaluate(study, config, workdir)
        ended: list[tuple[str, Measured]] = []
        for number, part in enumerate(parts(study, config)):
            folder = workdir / CONTEXTS_FOLDER / part.name if number else workdir
            folder.mkdir(parents=True, exist_ok=True)
            outcome = self.each.evaluate(part.study, part.config, folder)
            if isinstance(outcome, Failed):
                failed = in_context(outcome, part.name)
                return replace(failed, contexts=_named([*ended, (part.name, outcome)]))
            ended.append((part.name, outcome))
        return mean_outcome(ended)

    def evaluate_together(
        self, study: Study, configs: Sequence[Config], workdirs: Sequence[Path], seed: int
    ) -> tuple[Outcome, ...]:
        """Launch all interleaved; raise `ValueError` for a study with several contexts."""
        if study.contexts:
            raise ValueError("launches in several contexts cannot be interleaved")
        return self.each.evaluate_together(study, configs, workdirs, seed)


def mean_outcome(ended: Sequence[tuple[str, Measured]]) -> Measured:
    """Return the first outcome, with the geometric means over all as metrics."""
    metrics = tuple(_means(ended))
    absent = _absent(ended, {metric.name for metric in metrics})
    return replace(ended[0][1], metrics=metrics, absent=absent, contexts=_named(ended))


def other_work_anywhere(measured: Measured, reference: Measured, study: Study) -> Failed | None:
    """Return a failure when the losses in a context differ from those of the reference."""
    if not study.contexts:
        return other_work(measured.measurement, reference.measurement, study)
    expected = dict(_measured(reference))
    contexts = {context.name: context for context in study.contexts}
    for name, outcome in _measured(measured):
        context = contexts.get(name)
        inside = study if context is None else replace(study, workload=context.workload)
        difference = other_work(outcome.measurement, expected[name].measurement, inside)
        if difference is not None:
            return replace(in_context(difference, name), contexts=measured.contexts)
    return None


def _named(ended: Sequence[tuple[str, Outcome]]) -> tuple[ContextOutcome, ...]:
    return tuple(ContextOutcome(name=name, outcome=outcome) for name, outcome in ended)


def _measured(outcome: Measured) -> Iterator[tuple[str, Measured]]:
    for one in outcome.contexts:
        if isinstance(one.outcome, Measured):
            yield one.name, one.outcome


def _means(ended: Sequence[tuple[str, Measured]]) -> Iterator[MetricValue]:
    """Yield the means of metrics that are above 0 in every context."""
    for metric in ended[0][1].metrics:
        values = [outcome.metric(metric.name) for _, outcome in ended]
        known = [value for value in values if value is not None and value > 0]
        if len(known) == len(values):
            yield replace(metric, value=math.exp(fmean(map(math.log, known))))


def _absent(ended: Sequence[tuple[str, Measured]], present: set[str]) -> Mapping[str, str]:
    """Return why each other metric has no mean: the first context without a value above 0."""
    reasons: dict[str, str] = {}
    for name, outcome in ended:
        for metric in outcome.metrics:
            if metric.value <= 0 and metric.name not in present:
                why = f"{metric.value:g} in context {name}, and only values above 0 have a mean"
                reasons.setdefault(metric.name, why)
        for absent, why in outcome.absent.items():
            if absent not in present:
                reasons.setdefault(absent, f"in context {name}: {why}")
    return reasons


LEAST_TIMEOUT_S = 1.0
KEPT_FILES = ("*.json", "*.json.gz", "*.jsonl", "*.xplane.pb", "*.columns", "*.log", "*.stacks.txt")
"""What a launch may leave, beside the files that its job reads."""


Fits: TypeAlias = Callable[[Study, Sequence[tuple[int, ...]]], bool]
"""Whether launches with these peaks per rank fit on the machine together."""


HasTime: TypeAlias = Callable[[Purpose, int, float], bool]
"""Whether launches of a purpose and series may begin that take so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRunner:
    """Runs trials of one study in its folder of the store, which is emptied after each launch."""

    study_id: str
    prepared: PreparedStudy
    store: Store
    observer: Observer
    evaluator: Evaluator
    fits: Fits = fits_together
    sleep: Callable[[float], None] = time.sleep
    scrubber: Scrubber | None
    """Removes secrets from all that is recorded; None where it was recorded before."""
    left_s: Callable[[], float | None] = lambda: None
    """Time that is left of the search's limit, which no launch may pass."""
    has_time: HasTime = lambda _purpose, _series, _seconds: True
    """Whether repeat launches that take this long end within the limit."""

    @property
    def study(self) -> Study:
        """The study whose trials are run."""
        return self.prepared.study

    def begin(self, ordinal: int, policy: Policy, exchange: LlmExchange | None) -> PendingTrial:
        """Record a policy, and the conversation behind it, before it is launched."""
        if self.scrubber is not None:
            # Only known values: digests identify policies, and replays need exact conversations.
            policy = with_texts(policy, self.scrubber.known)
            exchange = exchange and with_texts(exchange, self.scrubber.known)
        pending = PendingTrial(ordinal=ordinal, policy=policy, started_at=utc_now(), exchange=None)
        return self.store.begin(self.study_id, pending, exchange)

    def decide(self, pending: PendingTrial, history: History) -> Config | Trial:
        """Return the configuration of a proposal, or the trial if it ends without a launch."""
        answer = self.prepared.decide(pending.policy)
        if isinstance(answer, Failed):
            return self._ended(pending, None, answer, history)
        duplicate = duplicate_of(answer, history)
        if duplicate is None:
            return answer
        failed = Failed(stage=Stage.CHECK, kind=FailureKind.DUPLICATE, message=duplicate)
        return self._ended(pending, answer, failed, history)

    def run(
        self, pending: PendingTrial, config: Config, history: History, folder: str = ""
    ) -> Trial:
        """Launch, measure and score a configuration.

        Trials with different `folder`s may run in parallel threads. Raises `StoreError` when files
        cannot be written or stored.
        """
        outcome, lost = self._launch(config, history, folder)
        ended = self._ended(pending, config, outcome, history)
        return replace(ended, attempts=1 + len(lost), lost_launches=lost)

    def clear(self) -> None:
        """Remove the files of earlier launches, also of a killed process."""
        shutil.rmtree(self._workdir, ignore_errors=True)

    @property
    def _workdir(self) -> Path:
        return self.store.workdir(self.study_id)

    def _ended(
        self,
        pending: PendingTrial,
        config: Config | None,
        outcome: Outcome,
        history: History,
    ) -> Trial:
        score = None
        if isinstance(outcome, Measured):
            past = (trial.outcome for trial in history)
            scored = self.prepared.scoring.against([*past, outcome]).of(outcome)
            outcome, score = (scored, None) if isinstance(scored, Failed) else (outcome, scored)
        return Trial(
            ordinal=pending.ordinal,
            policy=pending.policy,
            config=config,
            outcome=outcome,
            score=score,
            started_at=pending.started_at,
            ended_at=utc_now(),
            attempts=0,
            exchange=pending.exchange,
        )

    def _launch(
        self, config: Config, history: History, folder: str
    ) -> tuple[Outcome, tuple[FailureKind, ...]]:
        """Launch, and retry while the infrastructure fails; return how it failed before."""
        retries = Retrying(
            retry=retry_if_result(self._may_retry),
            stop=stop_after_attempt(1 + self.study.measure.infrastructure_retries),
            wait=wait_exponential(multiplier=1, max=30),
            sleep=self.sleep,
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )
        limited, outcomes = self._with_limit(history), list[Outcome]()

        def launch() -> Outcome:
            outcomes.append(self.launch_once(limited, config, folder))
            return outcomes[-1]

        outcome: Outcome = retries(launch)
        lost = tuple(each.kind for each in outcomes[:-1] if isinstance(each, Failed))
        reference = history.measured[0].outcome if history.measured else None
        if isinstance(outcome, Measured) and isinstance(reference, Measured):
            difference = other_work_anywhere(outcome, reference, self.study)
            if difference is not None:
                files, launched = outcome.artifacts, outcome.launched
                return replace(difference, artifacts=files, launched=launched), lost
        return outcome, lost

    def _may_retry(self, outcome: Outcome) -> bool:
        if not _is_infrastructure(outcome):
            return False
        left_s = self.left_s()
        return left_s is None or left_s > LEAST_TIMEOUT_S

    def _with_limit(self, history: History) -> Study:
        """Return the study with a limit that stops a launch clearly slower than the best.

        The limit uses all launches of the best. With several contexts there is none: a launch may
        be slower in one and better overall.
        """
        study, scoring, best = self.study, self.prepared.scoring, history.best
        measure = study.measure
        if study.contexts or measure.race_ratio <= 1 or not is_step_time(scoring):
            return study
        if best is None or best.score is None or not isinstance(best.outcome, Measured):
            return study
        first_s = best.outcome.metric("step_time")
        if first_s is None:
            return study
        slower = history.cost(best) / best.score.cost
        best_s = first_s * (slower if scoring.lower_is_better else 1 / slower)
        limit_s = min(measure.race_ratio * best_s, measure.stop_above_s or math.inf)
        return replace(study, measure=replace(measure, stop_above_s=limit_s))

    def launch_once(self, study: Study, config: Config, folder: str = "") -> Outcome:
        """Launch a configuration and store its files.

        Raises `StoreError` when they cannot be written or stored.
        """
        with self._folders(self._workdir / folder, 1) as (place,):
            timed, is_cut = self._within_limit(study)
            outcome = self.evaluator.evaluate(timed, config, place)
            return self._stored(_out_of_time(outcome, timed) if is_cut else outcome, place)

    def launch_together(
        self, study: Study, configs: Sequence[Config], seed: int
    ) -> tuple[Outcome, ...]:
        """Launch configurations with interleaved steps and store their files.

        Raises `StoreError` when they cannot be written or stored.
        """
        with self._folders(self._workdir, len(configs)) as folders:
            timed, is_cut = self._within_limit(study)
            outcomes = self.evaluator.evaluate_together(timed, configs, folders, seed)
            if is_cut:
                outcomes = tuple(_out_of_time(outcome, timed) for outcome in outcomes)
            return tuple(map(self._stored, outcomes, folders))

    def _within_limit(self, study: Study) -> tuple[Study, bool]:
        """Return the study with a timeout that keeps to the limit, and whether that cuts it."""
        left_s = self.left_s()
        if left_s is None or left_s >= study.measure.timeout_s:
            return study, False
        timeout_s = max(LEAST_TIMEOUT_S, left_s)
        return replace(study, measure=replace(study.measure, timeout_s=timeout_s)), True

    @contextmanager
    def _folders(self, root: Path, count: int) -> Iterator[Sequence[Path]]:
        """Create an empty folder for each launch and remove it afterwards."""
        folders = [root / str(number) for number in range(count)] if count > 1 else [root]
        try:
            shutil.rmtree(root, ignore_errors=True)
            for folder in folders:
                folder.mkdir(parents=True)
            yield folders
            shutil.rmtree(root)
        except OSError as error:
            raise StoreError(f"cannot work in {root}: {error}; free space there") from error

    def _stored(self, outcome: Outcome, folder: Path) -> Outcome:
        """Return the outcome with its files in the store, both without secrets."""
        if self.scrubber is not None:
            scrub_files(folder, self.scrubber)
            outcome = self.scrubber.value(outcome)
        found = {path for kind in KEPT_FILES for path in folder.rglob(kind)}
        if outcome.launched is not None:
            found |= {folder / name for name in outcome.launched.files}
        paths = sorted(path for path in found if path.is_file() and not path.is_symlink())
        names = {path: path.relative_to(folder).as_posix() for path in paths}
        return replace(outcome, artifacts=self.store.artifacts.keep_all(names))


def _out_of_time(outcome: Outcome, study: Study) -> Outcome:
    """Return the outcome of a launch whose timeout was cut; the limit is no fault of it.

    A hang that ended the launch before that is.
    """
    launched = outcome.launched
    if not isinstance(outcome, Failed) or launched is None or launched.reason != "timeout":
        return outcome
    words = f"the time limit of the search ended the launch after {study.measure.timeout_s:.3g} s"
    return replace(outcome, kind=FailureKind.INFRASTRUCTURE, message=words)


def _is_infrastructure(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and outcome.kind.is_infrastructure
