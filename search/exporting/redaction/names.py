"""The names that a record is known to hold: of hosts, users and jobs, and those that are given."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from records.launched import Launched
from search.exporting.asked import Exported
from search.exporting.bundle import launches_of

_COMMON = {
    *("root", "user", "users", "admin", "ubuntu", "nobody", "guest", "runner", "shared", "public"),
    *("localhost", "localhost.localdomain", "cpu", "cuda", "gpu", "none", "true", "false"),
}
"""Names that many machines have and that are words besides: they tell nothing."""
_HOST_VARIABLES = ("HOSTNAME", "HOST", "SLURMD_NODENAME", "MASTER_ADDR")
_USER_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SLURM_JOB_USER")
_JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
_ADDRESS = re.compile(r"[\d.:]+|[0-9a-fA-F:]+:[0-9a-fA-F:]*")


@dataclass(slots=True)
class Known:
    """Names by kind, each with the word that stands for it; it grows while texts are read."""

    words: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _given: set[str] = field(default_factory=set)

    def is_telling(self, name: str) -> bool:
        """Whether a name tells anybody anything, and is none of the words that stand for one."""
        key = name.strip().lower()
        return bool(key) and key not in _COMMON and key not in self._given

    def add(self, kind: str, name: str) -> None:
        """Take in a name, unless it is common or known; a host is known by its short name too."""
        name = name.strip()
        key = name.lower()
        if key in self.words or not self.is_telling(name):
            return
        short = key.partition(".")[0]
        if kind == "host":
            if _ADDRESS.fullmatch(name):
                return
            if short not in self.words and short not in _COMMON:
                self.words[short] = self.next_word(kind)
            self.words[key] = self.words.get(short) or self.next_word(kind)
            return
        self.words[key] = self.next_word(kind)

    def next_word(self, kind: str) -> str:
        """The next word for something of this kind: `host1`, `host2`, ..."""
        while True:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            word = f"{kind}{self._counts[kind]}"
            if word not in self.words:
                self._given.add(word)
                return word


def known_names(found: Exported, *, hosts: Iterable[str], users: Iterable[str]) -> Known:
    """The names in how trials were launched, and those given."""
    known = Known()
    for launched in launches(found):
        for host in launched.hosts:
            known.add("host", host)
        if launched.job_id is not None:
            known.add("job", launched.job_id)
        _add_variables(known, launched.environment)
    for host in hosts:
        known.add("host", host)
    for user in users:
        known.add("user", user)
    command = found.row.study.command
    if command is not None:
        _add_variables(known, command.environment)
    return known


def launches(found: Exported) -> Iterable[Launched]:
    """How all that is exported was launched."""
    for trial in found.trials:
        yield from launches_of(trial.outcome)
    for repeat in found.repeats:
        yield from launches_of(repeat.outcome)


def _add_variables(known: Known, environment: Mapping[str, str]) -> None:
    kinds = (("host", _HOST_VARIABLES), ("user", _USER_VARIABLES), ("job", _JOB_VARIABLES))
    for kind, variables in kinds:
        for variable in variables:
            known.add(kind, environment.get(variable, ""))
