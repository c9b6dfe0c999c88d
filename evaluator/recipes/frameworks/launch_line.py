"""A launch line: its launcher, program and arguments, from words or from a shell script."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Self

from records.errors import StudyError, shown

READ_TIMEOUT_S = 60.0
_SWITCHES = re.compile(
    r"-[uBEIOPsSv]+|--(?:standalone|no[-_]python|virtual[-_]local[-_]rank|run[-_]path"
    r"|multi_gpu|cpu|tpu|use_deepspeed|use_fsdp|use_megatron_lm|quiet|debug|no_ssh|force_multi"
    r"|no_local_rank|bind_cores_to_rank|save_pid)(?:=.*)?"
)
"""Options of launchers and of Python that take no value of their own."""
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_NEVER_OURS = re.compile(
    r"_|PWD|OLDPWD|SHLVL|BASH.*|PATH|HOME|CCLSEARCH_.*|PYTHON(?!PATH).*|TMPDIR|TERM|LANG|LC_.*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """The command of a job: `launcher program arguments`, in `folder`, with `environment`.

    The launcher is empty where the program is started itself; the program is `-m module`, a script,
    or a command with its subcommand. The environment is what the line or its script sets.
    """

    launcher: tuple[str, ...] = ()
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    search_path: str | None = None

    @classmethod
    def of(
        cls,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        search_path: str | None = None,
    ) -> Self:
        """Return the line of these words; raises `StudyError` when they start no program."""
        rest, own = list(words), dict(environment or {})
        while rest and (re.match(r"[A-Za-z_]\w*=", rest[0]) or rest[0] in {"exec", "env", "nohup"}):
            name, equals, value = rest.pop(0).partition("=")
            own |= {name: value} if equals else {}
        if not rest:
            raise StudyError("the launch line is empty; give the command that you start today")
        first = rest.pop(0)
        name = Path(first).name
        starts_ranks = name in _LAUNCHERS
        launcher = [first, *_options(rest)] if starts_ranks else []
        if name == "accelerate" and rest[:1] == ["launch"]:
            launcher += [rest.pop(0), *_options(rest)]
        if not starts_ranks and not name.startswith("python"):
            program = [first, *([rest.pop(0)] if rest and rest[0].isidentifier() else [])]
        else:
            before = [] if starts_ranks else [first, *_options(rest)]
            if before and before[-1] == "torch.distributed.run":
                launcher, before = [*before, *_options(rest)], []
            at_module = bool(before or launcher) and (before or launcher)[-2:-1] == ["-m"]
            taken = before or launcher
            program = [] if at_module else [rest.pop(0)] if rest else []
            if at_module:
                program, taken[-2:] = taken[-2:], []
            program = [*before, *program]
        if not program:
            raise StudyError(
                f"{shown(' '.join(words))} starts no program; give the whole command, or the "
                "script that holds it with --baseline"
            )
        return cls(
            launcher=tuple(launcher),
            program=tuple(program),
            arguments=tuple(rest),
            folder=folder,
            environment=own,
            search_path=search_path,
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The whole command."""
        return (*self.launcher, *self.program, *self.arguments)

    @property
    def python(self) -> Path:
        """The Python of the job's ranks; raises `StudyError` where the program is missing."""
        first = (self.launcher or self.program)[0]
        found = shutil.which(first, path=self.search_path)
        if found is None and (self.folder / first).is_file():
            found = str(self.folder / first)
        if found is None:
            raise StudyError(
                f"{shown(first)} of the launch line is not on the PATH; activate the environment "
                "that the job runs in, or write the path of the program"
            )
        if Path(first).name.startswith("python"):
            return Path(found)
        return _python_of(Path(found))

    def located(self) -> Self:
        """Return the line with each file of its folder, also in `--option=file`, as a full path."""
        located = [self._locate(word) for word in self.words]
        one, two = len(self.launcher), len(self.launcher) + len(self.program)
        return replace(
            self,
            launcher=tuple(located[:one]),
            program=tuple(located[one:two]),
            arguments=tuple(located[two:]),
        )

    def _locate(self, word: str) -> str:
        before, equals, value = word.rpartition("=")
        path = self.folder / value
        is_path = bool(value) and not value.startswith(("-", "/")) and re.search(r"[./]", value)
        return f"{before}{equals}{path.resolve()}" if is_path and path.exists() else word


def _options(words: list[str]) -> Iterator[str]:
    """Take away the options at the start, with their values; stop after `-m NAME`."""
    taken: list[str] = []
    while words and words[0].startswith("-") and taken[-2:-1] not in (["-m"], ["--module"]):
        option = words.pop(0)
        taken.append("-m" if option == "--module" else option)
        if "=" not in option and not _SWITCHES.fullmatch(option) and words:
            taken.append(words.pop(0))
    return iter(taken)


def _python_of(program: Path) -> Path:
    """The Python that a console script names in its first line."""
    with program.open("rb") as file:
        head = file.readline(4096).decode("utf-8", "replace")
    found = re.match(r"#!\s*(\S*python[\d.]*)", head)
    beside = program.parent / "python"
    if found and Path(found[1]).exists():
        return Path(found[1])
    if beside.exists():
        return beside
    raise StudyError(f"the Python of {program} is not known; start the line with that Python")


def read_script_lines(path: Path, environment: Mapping[str, str]) -> list[LaunchLine]:
    """Return every launch line of a shell script, with what it exports; none of them is started.

    Bash follows the script with its variables, conditions and loops. Commands that only describe
    the machine run; other programs do not. Raises `StudyError` when it cannot be followed.
    """
    if not path.is_file():
        raise StudyError(f"--baseline {path}: there is no such file")
    tracer = files("evaluator.recipes.frameworks") / "read_line.sh"
    with tempfile.TemporaryDirectory(prefix="cclsearch-line-") as folder:
        lines = Path(folder) / "lines"
        lines.touch()
        try:
            ended = subprocess.run(
                [
                    "bash",
                    "-c",
                    'source "$1"; shift; source "$0"',
                    str(path.absolute()),
                    str(tracer),
                ],
                env={**environment, "CCLSEARCH_LINES": str(lines)},
                cwd=path.absolute().parent,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=READ_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StudyError(
                f"--baseline {path}: reading it took more than {READ_TIMEOUT_S:.0f} s; give the "
                "command itself after --"
            ) from error
        found = list(_recorded(lines.read_bytes(), environment))
    if not found:
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        why = f" ({said[-1]})" if said else ""
        raise StudyError(
            f"--baseline {path} starts no torchrun, python, accelerate, deepspeed or vllm{why}; "
            "give the command itself after --"
        )
    return found


def _recorded(data: bytes, ours: Mapping[str, str]) -> Iterator[LaunchLine]:
    """Yield the lines in a recording: a count, the words, the folder, then the variables."""
    parts = data.decode("utf-8", "surrogateescape").split("\0")
    while len(parts) > 1:
        count = int(parts.pop(0))
        words, folder = parts[:count], Path(parts[count])
        end = parts.index("", count + 1)
        pairs = (variable.partition("=") for variable in parts[count + 1 : end])
        exported = {name: value for name, _, value in pairs}
        parts = parts[end + 1 :]
        own = {
            name: value
            for name, value in exported.items()
            if ours.get(name) != value and not _NEVER_OURS.fullmatch(name)
        }
        yield LaunchLine.of(words, folder, own, exported.get("PATH", os.defpath))
