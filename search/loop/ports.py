"""Protocols of the loop: Proposer, Evaluator, Observer; and how secrets are removed.

Everything recorded is scrubbed first: a resumed or replayed search sees the same texts.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from evaluator.timing.decision import Noise
from evaluator.traces.readers.files import STANDARD_LIMITS
from records.codec import with_texts
from records.errors import TraceError
from records.llm_exchange import LlmExchange
from records.scrub import Scrubber
from records.study import Measure, Study
from records.trial import Config, History, Outcome, Policy, Repeat, Trial
from records.workload import Workload
from search.loop.leader import Race


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The next policy, and the LLM exchange behind it if there was one."""

    policy: Policy
    exchange: LlmExchange | None = None


class Proposer(Protocol):
    """Proposes the next policy from the study and its history.

    A pure function of its arguments and its construction, except for asking a model; raises
    `CclsearchError` only when the study cannot continue (for example a rejected key).
    """

    @property
    def name(self) -> str:
        """Name under which its policies are recorded."""
        ...

    def propose(self, study: Study, history: History) -> Proposal | None:
        """Return the next policy, or None when nothing is left to try."""
        ...


class Observer(Protocol):
    """Receives events; returns nothing and never raises."""

    def study_started(self, study_id: str, study: Study, strategy: str) -> None:
        """A run starts or resumes."""
        ...

    def trial_started(self, ordinal: int, policy: Policy) -> None:
        """A policy was proposed and recorded."""
        ...

    def config_decided(self, ordinal: int, config: Config) -> None:
        """The policy returned a valid configuration, which is launched next."""
        ...

    def phase(self, name: str, ordinal: int | None) -> None:
        """A job entered a phase: setup, warmup, timed, profile.

        `ordinal` is its trial; None for a repeat launch of an earlier trial.
        """
        ...

    def trial_finished(self, trial: Trial, history: History) -> None:
        """A trial ended and is recorded."""
        ...

    def noise_measured(self, noise: Noise, measure: Measure) -> None:
        """Identical launches were compared: how much a round's ratio varies by noise."""
        ...

    def repeat_finished(self, repeat: Repeat) -> None:
        """One repeat launch of an earlier trial ended and is recorded."""
        ...

    def race_decided(self, race: Race) -> None:
        """A race of a challenger against the leader was decided."""
        ...

    def nodes_held(self, node_s: float) -> None:
        """All runs of the study have held nodes for that long, in seconds times nodes."""
        ...

    def notice(self, words: str) -> None:
        """Report an event to the user; the search continues."""
        ...


class Evaluator(Protocol):
    """Measures one configuration of a study."""

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:
        """Launch and measure; files named as artifacts stay in `workdir` for the caller."""
        ...

    def evaluate_together(
        self, study: Study, configs: Sequence[Config], workdirs: Sequence[Path], seed: int
    ) -> tuple[Outcome, ...]:
        """Launch all with interleaved steps; return outcomes in the order of `configs`."""
        ...


TEXT_FILES = ("*.json", "*.jsonl", "*.log", "*.stacks.txt")
"""Files of a launch that hold text; traces are stored as the profiler wrote them."""
PIECE_BYTES = 16 << 20


def scrubbed_study(study: Study, scrubber: Scrubber) -> Study:
    """Return the study without secrets, and with `~` for the home folder in paths.

    Another user's home differs: paths are expanded where they are used.
    """
    study = with_texts(study, scrubber.secrets)
    contexts = (replace(c, workload=_portable(c.workload, scrubber)) for c in study.contexts)
    command, cluster = study.command, study.cluster
    return replace(
        study,
        cluster=cluster
        and replace(
            cluster,
            shared_dir=cluster.shared_dir and scrubber.path(cluster.shared_dir),
            python=cluster.python and scrubber.path(cluster.python),
        ),
        workload=_portable(study.workload, scrubber),
        contexts=tuple(contexts),
        seed_policy=scrubber.path(study.seed_policy),
        command=command
        and replace(
            command,
            run=tuple(map(scrubber.path, command.run)),
            environment=_portable_map(command.environment, scrubber),
            file_digests=_portable_map(command.file_digests, scrubber),
        ),
    )


def _portable_map(texts: Mapping[str, str], scrubber: Scrubber) -> Mapping[str, str]:
    return {scrubber.path(name): scrubber.path(text) for name, text in texts.items()}


def _portable(workload: Workload, scrubber: Scrubber) -> Workload:
    text_file = workload.text_file
    return replace(workload, text_file=text_file and scrubber.path(text_file))


def scrub_files(folder: Path, scrubber: Scrubber) -> None:
    """Remove secrets from the texts that a launch wrote."""
    for kind in TEXT_FILES:
        for path in folder.rglob(kind):
            if path.is_file() and not path.is_symlink() and not _is_trace(path):
                _scrub_file(path, scrubber)


def _is_trace(path: Path) -> bool:
    from evaluator.traces.readers.formats import format_of

    if path.suffix != ".json":
        return False
    try:
        format_of(path, STANDARD_LIMITS)
    except TraceError:
        return False
    return True


def _scrub_file(path: Path, scrubber: Scrubber) -> None:
    """Remove secrets from a file; a file without any is not rewritten."""
    changed = False
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".scrubbed-")
    try:
        with os.fdopen(handle, "wb") as out, path.open("rb") as file:
            # A piece ends at a line end, unless a line is longer than a piece.
            while piece := file.read(PIECE_BYTES) + file.readline(PIECE_BYTES):
                scrubbed = scrubber.content(piece)
                changed = changed or scrubbed != piece
                out.write(scrubbed)
        if changed:
            Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
