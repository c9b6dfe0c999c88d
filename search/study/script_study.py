"""A study file for a script, from the options that it declares; the script is read, never run."""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from records.errors import StudyError
from records.files import read_text
from records.study import Value

TUNED = re.compile(
    r"batch|mbs$|accum|worker|thread|bucket|prefetch|shard|fsdp|zero|ddp|^(dp|tp|pp|cp|ep)$|parallel"
    r"|recompute|checkpointing|compile|fused|attn|attention|flash|pin_memory|static_graph|overlap"
    r"|chunk|schedule$|reshard|offload",
    re.IGNORECASE,
)
UNTUNED = re.compile(
    r"lr|learning|epoch|seed|path|dir$|file|name|log|save|eval|test|decay|dropout|resume"
    r"|(?<!accumulation)_steps$",
    re.IGNORECASE,
)
BATCH = re.compile(r"batch|mbs$", re.IGNORECASE)
MICRO_BATCH = re.compile(r"micro|mbs$", re.IGNORECASE)
"""These accumulate gradients up to the global batch, which stays the same."""
ACCUMULATION = re.compile(r"accum", re.IGNORECASE)
LAUNCHED = ("init_process_group", "Trainer", "Accelerator", "Fabric", "deepspeed", "fully_shard")
"""Names by which a script shows that torchrun starts its ranks."""
CALLBACKS = {"transformers": "trainer_callback", "lightning": "lightning_callback"}
"""The callback for the trainer of each library."""

Spelling = Literal["value", "pair", "switch"]
"""How a flag is spelled: `--x=1`, `--x` or `--no-x`, `--x` or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOption:
    """An option of a script: its flag, and its default, which is also the first choice."""

    flag: str
    default: Value
    choices: tuple[Value, ...] = ()
    spelling: Spelling = "value"

    @property
    def knob(self) -> str:
        """The name of its knob."""
        return re.sub(r"\W", "_", self.flag.lstrip("-"))

    @property
    def proposed(self) -> tuple[Value, ...]:
        """The choices of the knob, the default first."""
        if self.spelling != "value":
            off = f"--no-{self.flag.lstrip('-')}" if self.spelling == "pair" else ""
            spelled = (self.flag, off)
            return spelled if self.default else spelled[::-1]
        found = self.choices
        if not found and isinstance(self.default, bool):
            found = (True, False)
        elif not found and isinstance(self.default, int):
            found = tuple(n for n in (self.default // 2, 2 * self.default) if n > 0)
            if re.search("worker|thread", self.knob) and not found:
                found = (2, 4)
        return tuple(dict.fromkeys((self.default, *found)))

    @property
    def word(self) -> str:
        """The word of the command that passes it."""
        place = f"{{{self.knob}}}"
        return f"{self.flag}={place}" if self.spelling == "value" else place


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a script shows of itself.

    `loop_line` is that of the loop that calls `backward`, `global_batch` what it takes where the
    variable GLOBAL_BATCH is not set, `callback` the one that fits the trainer it uses.
    """

    path: Path
    options: tuple[ScriptOption, ...]
    has_ranks: bool
    reports_steps: bool
    uses_torch: bool
    loop_line: int | None = None
    global_batch: int | None = None
    callback: str | None = None

    @property
    def knobs(self) -> tuple[ScriptOption, ...]:
        """Options that change the speed, by their names; without those that change the work."""
        tuned = [o for o in self.options if TUNED.search(o.knob) and not UNTUNED.search(o.knob)]
        keeps_work = any(ACCUMULATION.search(option.knob) for option in tuned)
        return tuple(
            option
            for option in tuned
            if len(option.proposed) > 1
            and (keeps_work or MICRO_BATCH.search(option.knob) or not BATCH.search(option.knob))
        )


def read_script(path: Path) -> Script:
    """Read the options of a script's argparse, click, typer, tyro or dataclasses.

    Raises `StudyError` for a file that is not Python.
    """
    try:
        tree = ast.parse(read_text(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise StudyError(f"{path} cannot be read as Python: {error}") from error
    options = {option.knob: option for option in _options(tree)}
    names = set(_names(tree))
    fitting = (callback for module, callback in CALLBACKS.items() if module in names)
    return Script(
        path=path,
        options=tuple(options.values()),
        has_ranks=not names.isdisjoint(LAUNCHED),
        reports_steps="cclsearch" in names and not names.isdisjoint({"steps", *CALLBACKS.values()}),
        uses_torch=not names.isdisjoint({"torch", "accelerate", "deepspeed", *CALLBACKS}),
        loop_line=max(_loops(tree), default=None),
        global_batch=next(_global_batches(tree), None),
        callback=next(fitting, None),
    )


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a script uses or imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Name():
                yield node.id
            case ast.Attribute():
                yield node.attr
            case ast.alias():
                yield from node.name.split(".")
            case ast.ImportFrom():
                yield from (node.module or "").split(".")


def _global_batches(tree: ast.AST) -> Iterator[int]:
    """Yield the defaults of `os.environ.get("GLOBAL_BATCH", ...)`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=[ast.Constant(value="GLOBAL_BATCH"), ast.Constant(value=default)]):
                if str(default).isdecimal() and int(str(default)) > 0:
                    yield int(str(default))


def _loops(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of innermost loops that call `backward`."""
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and any(
            isinstance(n, ast.Attribute) and n.attr == "backward" for n in ast.walk(loop)
        ):
            yield loop.lineno


def _options(tree: ast.AST) -> Iterator[ScriptOption]:
    parsed = _parsed_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument" | "option")):
                yield from _declared(node)
            case ast.FunctionDef() if node.name in parsed or _is_command(node):
                yield from _annotated(_parameters(node), "pair")
            case ast.ClassDef() if node.name in parsed:
                yield from _annotated(_fields(node), parsed[node.name])
            case _:
                pass


def _declared(call: ast.Call) -> Iterator[ScriptOption]:
    """Yield an option of argparse or click that has a default."""
    flags = [_constant(word) for word in call.args]
    long_flag = next((str(f).split("/")[0] for f in flags if str(f).startswith("--")), None)
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    if long_flag is None:
        return
    action = ast.unparse(named["action"]) if "action" in named else ""
    default = _constant(named["default"]) if "default" in named else None
    is_pair = "BooleanOptionalAction" in action or any("/--no-" in str(flag) for flag in flags)
    if is_pair or "store_true" in action or _constant(named.get("is_flag")) is True:
        spelling: Spelling = "pair" if is_pair else "switch"
        yield ScriptOption(flag=long_flag, default=default is True, spelling=spelling)
        return
    found = named.get("choices", named.get("type"))
    listed = found.args[0] if isinstance(found, ast.Call) and found.args else found
    elements = listed.elts if isinstance(listed, ast.List | ast.Tuple) else ()
    choices = tuple(value for word in elements if (value := _constant(word)) is not None)
    if default is not None:
        yield ScriptOption(flag=long_flag, default=default, choices=choices)


def _parsed_names(tree: ast.AST) -> Mapping[str, Spelling]:
    """Return the functions and classes that a parser is made of, and how it spells booleans."""
    found: dict[str, Spelling] = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            function = ast.unparse(call.func)
            is_trainer = function.endswith("ArgumentParser") and function != "ArgumentParser"
            if function in {"tyro.cli", "typer.run", "CLI"} or is_trainer:
                words = (n for a in call.args for n in ast.walk(a) if isinstance(n, ast.Name))
                found |= {n.id: "value" if is_trainer else "pair" for n in words}
    return found


def _is_command(function: ast.FunctionDef) -> bool:
    """Whether a decorator makes a function a command of typer."""
    return any(
        ast.unparse(each).split("(")[0].endswith(".command") for each in function.decorator_list
    )


_Declaration = tuple[str, ast.expr | None, ast.expr | None]
"""Name, annotation and default."""


def _parameters(function: ast.FunctionDef) -> Iterator[_Declaration]:
    given = function.args
    plain = given.posonlyargs + given.args
    missing = [None] * (len(plain) - len(given.defaults))
    for one, default in zip(plain, [*missing, *given.defaults], strict=True):
        yield one.arg, one.annotation, default
    for one, keyword in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield one.arg, one.annotation, keyword


def _fields(described: ast.ClassDef) -> Iterator[_Declaration]:
    for node in described.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation, node.value


def _annotated(found: Iterable[_Declaration], booleans: Spelling) -> Iterator[ScriptOption]:
    for name, annotation, value in found:
        default = _default(value)
        flag = f"--{name}" if booleans == "value" else f"--{name.replace('_', '-')}"
        if isinstance(default, bool) and booleans == "pair":
            yield ScriptOption(flag=flag, default=default, spelling="pair")
        elif default is not None:
            yield ScriptOption(flag=flag, default=default, choices=_literals(annotation))


def _default(value: ast.expr | None) -> Value | None:
    """Return a default, also one inside `field(default=...)` or `typer.Option(...)`."""
    if isinstance(value, ast.Call):
        named = {keyword.arg: keyword.value for keyword in value.keywords}
        value = named.get("default", value.args[0] if value.args else None)
    return _constant(value)


def _literals(annotation: ast.expr | None) -> tuple[Value, ...]:
    """Return the values of `Literal[...]` in an annotation."""
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal"):
            inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return tuple(value for word in inside if (value := _constant(word)) is not None)
    return ()


def _constant(word: ast.expr | None) -> Value | None:
    if isinstance(word, ast.Constant) and isinstance(word.value, bool | int | float | str):
        return word.value
    return None


def study_text(script: Script, tokens_per_step: int | None = None) -> str:
    """Return a study file for a script, with comments on what to complete."""
    return "\n".join(_lines(script, tokens_per_step)) + "\n"


def _lines(script: Script, tokens_per_step: int | None) -> Iterator[str]:
    start = ["torchrun", "--standalone", "--nproc-per-node={rank_count}"]
    words = [script.path.name, *(option.word for option in script.knobs)]
    rank_count = "world_size" if script.has_ranks else "1"
    batch = script.global_batch or tokens_per_step or 1
    length = tokens_per_step // batch if tokens_per_step else 1
    known = "as the script reported" if tokens_per_step else "TODO: tokens of all ranks together"
    yield f"# cclsearch run -c FILE; written for {script.path.name}."
    yield f"name = {_toml(script.path.stem)}\n"
    yield "[workload]                       # the work of one step, the same in every trial"
    yield f"name = {_toml(script.path.stem)}"
    yield f"{f'global_batch = {batch}':<33}# times sequence_length: {known}"
    yield f"sequence_length = {length}\n"
    yield '[launch]\nrecipe = "command"\n\n[command]'
    yield f"run = {_toml([*(start if script.has_ranks else ['python']), *words])}"
    yield f"rank_count = {_toml(rank_count)}"
    if not script.reports_steps:
        yield "# The script neither uses cclsearch.steps() nor a callback. If it prints step times:"
        yield "# step_time = 'step took (?P<ms>[0-9.]+) ms'"
    yield "\n# The first choice of each knob is today's value; together they are the seed."
    for option in script.knobs:
        yield f"[space.{option.knob}]\nchoices = {_toml(option.proposed)}"
    if not script.knobs:
        yield "# No option was found that is known to change the speed. For --workers=4, say,"
        yield '# add "--workers={workers}" to run, and remove the # signs here:'
        yield "# [space.workers]\n# choices = [4, 2, 8]"
    yield from _same_work(script.knobs)
    others = [option for option in script.options if option not in script.knobs]
    if others:
        yield "\n# Options left out, because they change the work or the result, or are not known:"
        yield f"# {', '.join(option.flag for option in others)}"
    yield "\n[measure]\ntimeout_s = 300.0                # of one launch"
    if not script.uses_torch:
        yield "profiled_steps = 0               # only scripts that use torch are profiled"
    yield "\n[budget]\ntrials = 12"


def _same_work(knobs: Sequence[ScriptOption]) -> Iterator[str]:
    """Yield the constraint that batch sizes and accumulation together keep the work of a step."""
    factors = [o for o in knobs if BATCH.search(o.knob) or ACCUMULATION.search(o.knob)]
    numbers = [o for o in factors if type(o.default) is int]
    if len(numbers) > 1:
        product = 1
        for option in numbers:
            product *= int(option.default)
        yield '\n[[constraint]]\nname = "same_work"'
        yield f'expression = "{" * ".join(o.knob for o in numbers)} == {product}"'
        yield 'reason = "every trial processes the same samples per step"'


def _toml(value: Value | Sequence[Value]) -> str:
    return json.dumps(value, ensure_ascii=False)
