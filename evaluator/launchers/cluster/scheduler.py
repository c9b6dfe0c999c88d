"""What a scheduler of a cluster is asked for: start an agent on each of N nodes, and end them.

It knows nothing of trials: agents connect back and run one launch after another.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from records.errors import StudyError

NAME_CHARS = 63
WORDS_CHARS = 400
COMMAND_LIMIT_S = 60.0


class SchedulerError(StudyError):
    """A scheduler refuses a request; the message has its own words."""


class SchedulerBusy(SchedulerError):
    """A scheduler does not answer now: it restarts, or its network is down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """One request for agents, an agent on each of `node_count` nodes.

    `name` is unique to the study and the attempt, of at most 63 characters of `[a-z0-9-]`, and
    finds the job again after a crash. `command` starts one agent on one node; an agent learns the
    number of its node from the connection. `environment` is added to what a node has and holds no
    secret. Where the scheduler carries files, `files` have to lie in the folder in which the
    command starts, readable by the user alone; otherwise there are none, and everything that the
    command names lies in the shared directory, as does `log`, which takes what agents print.
    """

    name: str
    node_count: int
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    log: Path = Path("/dev/null")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that has not started, and why in the scheduler's own word, as in `Resources`."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A job that has its nodes; `ends_in_s` is None where it has no time limit.

    A scheduler that does not know the names of its nodes yet gives none. `names` are those of the
    nodes whose agents cannot know them, by what each calls its node: containers have other names.
    """

    nodes: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    ends_in_s: float | None = None


GoneKind: TypeAlias = Literal[
    "ended", "cancelled", "preempted", "node_failed", "time_limit", "refused", "out_of_memory"
]


@dataclass(frozen=True, slots=True)
class Gone:
    """A job that is over: nothing of it runs any more; `words` are the scheduler's own.

    `node` is the one that was the cause, where that is known.
    """

    kind: GoneKind
    words: str
    node: str | None = None


JobState: TypeAlias = Waiting | Running | Gone


class Scheduler(Protocol):
    """Starts and ends agents; its methods may be called from several threads.

    It is made from the `[cluster]` of a study and our environment without secrets, which is all
    that its programs may see; making it asks nothing, and `missing` is called first.
    Each method but `missing` raises `SchedulerBusy` where the scheduler does not answer: the caller
    asks again later, and takes nothing for gone meanwhile.
    """

    @property
    def carries_files(self) -> bool:
        """Whether it brings the files of a request to the nodes, so that none need be shared."""
        ...

    def missing(self) -> str | None:
        """Return what is not installed here and how to get it; None where it can be used."""
        ...

    def facts(self) -> Mapping[str, str]:
        """Return what to show of it: version, partitions, node counts, whether it accounts."""
        ...

    def submit(self, request: AgentRequest) -> str:
        """Ask for agents and return the job's id; raises `SchedulerError` with its own words."""
        ...

    def find(self, name: str) -> str | None:
        """Return the id of the job of this name that is not gone, or None."""
        ...

    def state(self, job: str) -> JobState:
        """Return what became of a job; one that is not known any more is gone."""
        ...

    def cancel(self, job: str) -> None:
        """End a job, and return once the scheduler says that it is gone."""
        ...


def job_name(study_id: str, attempt: int) -> str:
    """Return the name of a study's request, the same for the same attempt."""
    suffix = f"-{attempt}"
    words = re.sub("[^a-z0-9]+", "-", f"cclsearch-{study_id}".lower()).strip("-")
    return f"{words[: NAME_CHARS - len(suffix)].rstrip('-')}{suffix}"


def absent_programs(programs: Sequence[str]) -> tuple[str, ...]:
    """Return those of a scheduler's programs that are not on the PATH."""
    return tuple(program for program in programs if shutil.which(program) is None)


def answer_of(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: str = "",
    limit_s: float = COMMAND_LIMIT_S,
) -> str:
    """Run a command of a scheduler in an environment without secrets, and return what it prints.

    Raises `SchedulerError` with its words where it fails, `SchedulerBusy` where it takes too long.
    """
    try:
        done = subprocess.run(
            command,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
        )
    except FileNotFoundError as error:
        raise SchedulerError(f"{command[0]} is not installed on this machine") from error
    except subprocess.TimeoutExpired as error:
        said = error.stderr.decode(errors="replace") if error.stderr else ""
        words = last_words(f"{command[0]} did not answer within {limit_s:g} s. {said}")
        raise SchedulerBusy(words) from error
    if done.returncode:
        words = last_words(done.stderr or done.stdout) or f"exit status {done.returncode}"
        name = f"{command[0]}: "  # most begin with it themselves
        raise SchedulerError(name + words.removeprefix(name))
    return done.stdout


def last_words(text: str) -> str:
    """Return what a command said, on one line, its end where it is long."""
    return " ".join(text.split())[-WORDS_CHARS:]
