"""A launch line: its launcher, program and arguments, from words or from a shell script."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Self

from records.errors import StudyError, shown

READ_TIMEOUT_S = 60.0
_SWITCHES = re.compile(
    r"-[uBEIOPsSv]+|--(?:standalone|no_python|virtual_local_rank|run_path|multi_gpu|cpu|tpu|ipex"
    r"|use_\w+|quiet|debug|no_ssh(_check)?|force_multi|no_local_rank|bind_cores_to_rank|save_pid"
    r"|same_network|enable_cpu_affinity|dynamo_use_\w+|elastic_training)(?:=.*)?"
)
"""Options of launchers and of Python that take no value of their own, with _ between words."""
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_BEFORE = {"exec", "env", "nohup", "time", "command"}
_NODES = re.compile(r"--(?:nnodes|num_nodes|num_machines)")
_RANKS = re.compile(r"--(?:nproc_per_node|num_processes|num_gpus)")
_NEVER_OURS = re.compile(
    r"_|PWD|OLDPWD|SHLVL|BASH.*|HOME|CCLSEARCH_.*|PYTHON(?!PATH).*|TMPDIR|TERM|LANG|LC_.*"
)
_OF_A_GROUP = re.compile(
    r"(?m)((?:^|[\s;])(?:done|fi|esac|\}|\)))"
    r"(?:[ \t]*[\d&]?>>?\|?[ \t]*(?:&\d|[^\s\d;|&()][^\s;|&]*))+"
)
"""Redirections of a group of commands, which bash would open before a trap can prevent it."""


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
        while rest and (re.match(r"[A-Za-z_]\w*=", rest[0]) or rest[0] in _BEFORE):
            name, equals, value = rest.pop(0).partition("=")
            own |= {name: value} if equals else {}
        if not rest:
            raise StudyError("the launch line is empty; give the command that you start today")
        launcher = list(_launcher(rest))
        program = list(_program(rest, launcher))
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
    def launcher_name(self) -> str:
        """What starts the ranks: torchrun, accelerate or deepspeed; empty for none."""
        modules = (_LAUNCHER_MODULES[word] for word in self.launcher if word in _LAUNCHER_MODULES)
        return next(modules, Path(self.launcher[0]).name if self.launcher else "")

    @property
    def node_count(self) -> int:
        """How many machines the launcher is told to use."""
        return self._count(_NODES) or 1

    @property
    def rank_count(self) -> int | None:
        """How many ranks the launcher is told to start on a node; None where it finds out."""
        return self._count(_RANKS)

    def _count(self, named: re.Pattern[str]) -> int | None:
        """Return the number, the last of a range, that an option of the launcher has."""
        words = [word[:2] + word[2:].replace("-", "_") for word in self.launcher]
        for option, following in pairwise((*words, "")):
            name, _, value = option.partition("=")
            if named.fullmatch(name):
                most = (value or following).rpartition(":")[2]
                return int(most) if most.isdecimal() else None
        return None

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
        """Return the line with each file of its folder, also in `--option=file`, as a full path.

        So is a program that only the PATH of its script has.
        """
        located = [self._locate(word) for word in self.words]
        if "PATH" in self.environment and os.sep not in located[0]:
            located[0] = shutil.which(located[0], path=self.search_path) or located[0]
        one, two = len(self.launcher), len(self.launcher) + len(self.program)
        if self.arguments and (self.folder / self.arguments[0]).is_dir():
            located[two] = str((self.folder / self.arguments[0]).resolve())  # of a model
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


def _launcher(words: list[str]) -> Iterator[str]:
    """Take away what starts the ranks, with its options; nothing where the program is started."""
    name = Path(words[0]).name
    if name in _LAUNCHERS:
        yield words.pop(0)
        if name == "accelerate" and words[:1] == ["launch"]:
            yield words.pop(0)
        yield from _options(words)
    elif name.startswith("python"):
        at = next((i for i, word in enumerate(words) if word in _LAUNCHER_MODULES), None)
        if at is not None and words[at - 1] == "-m":
            yield from words[: at + 1]
            del words[: at + 1]
            yield from _options(words)


def _program(words: list[str], launcher: list[str]) -> Iterator[str]:
    """Take away the program: `-m module`, a script, or a command with its subcommand."""
    if launcher[-2:-1] == ["-m"] and launcher[-1] not in _LAUNCHER_MODULES:
        yield from launcher[-2:]
        del launcher[-2:]
    elif launcher:
        yield from words[:1]
        del words[:1]
    elif Path(words[0]).name.startswith("python"):
        taken = [words.pop(0), *_options(words)]
        yield from taken
        if taken[-2:-1] not in (["-m"], ["-c"]) and words:
            yield words.pop(0)
    else:
        yield words.pop(0)
        if words and words[0].isidentifier():
            yield words.pop(0)


def _options(words: list[str]) -> Iterator[str]:
    """Take away the options at the start, with their values; stop after `-m NAME`."""
    taken: list[str] = []
    while words and words[0].startswith("-") and taken[-2:-1] not in (["-m"], ["-c"]):
        option = words.pop(0)
        taken.append("-m" if option == "--module" else option)
        folded = "--" + option[2:].replace("-", "_") if option.startswith("--") else option
        if "=" not in option and option != "-" and not _SWITCHES.fullmatch(folded) and words:
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


def read_script_lines(
    path: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> list[LaunchLine]:
    """Return every launch line of a shell script, with what it exports; none of them is started.

    Bash follows the script with its variables, conditions and loops. Commands that only describe
    the machine run; other programs do not. Raises `StudyError` when it cannot be followed.
    """
    if not path.is_file():
        raise StudyError(f"--baseline {path}: there is no such file")
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise StudyError(f"--baseline {path} cannot be read: {error.strerror}") from error
    tracer = files("evaluator.recipes.frameworks") / "read_line.sh"
    with tempfile.TemporaryDirectory(prefix="cclsearch-line-") as folder:
        lines = Path(folder) / "lines"
        lines.touch()
        script = Path(folder) / path.name
        text = _OF_A_GROUP.sub(r"\1", text).replace("BASH_SOURCE", "CCLSEARCH_SOURCE")
        script.write_text(text, encoding="utf-8", errors="surrogateescape")
        try:
            ended = subprocess.run(
                [
                    "bash",
                    "-c",
                    'source "$1"; shift; CCLSEARCH_SOURCE=$0; source "$CCLSEARCH_SCRIPT"',
                    str(path.absolute()),
                    str(tracer),
                    *arguments,
                ],
                env={
                    **environment,
                    "CCLSEARCH_LINES": str(lines),
                    "CCLSEARCH_SCRIPT": str(script),
                },
                cwd=path.absolute().parent,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=READ_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StudyError(
                f"--baseline {path}: reading it took more than {READ_TIMEOUT_S:g} s; give the "
                "command itself after --"
            ) from error
        found = list(_recorded(lines.read_bytes(), environment))
    if not found:
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        why = f" ({said[0].removeprefix(f'{script}: ')})" if said else ""
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
