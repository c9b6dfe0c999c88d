"""A study file for a script, from the options that it declares; the script is read, never run."""

import ast
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from evaluator.recipes.catalog import FRAMEWORKS
from records.errors import StudyError
from records.files import read_text
from records.study import Value
from search.study.training_loop import TrainingLoop

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
CALLBACKS = {
    "transformers": "trainer_callback",
    "lightning": "lightning_callback",
    "pytorch_lightning": "lightning_callback",
}
"""The callback for the trainer of each library."""
THROUGHPUT = "tokens_per_s"
USE_CPU = "--use_cpu"
TRAINING_ARGUMENTS: Mapping[str, tuple[Value, ...]] = {
    "per_device_train_batch_size": (8, 4, 16),
    "gradient_accumulation_steps": (1, 2),
    "gradient_checkpointing": (False, True),
    "dataloader_num_workers": (0, 2, 4),
    "ddp_bucket_cap_mb": (25, 50, 100),
    "torch_compile": (False, True),
}
"""Options that scripts inherit from the `TrainingArguments` of transformers, the default first."""
DEVICES = re.compile(r"(devices|gpus|procs|processes)(_per_node)?$", re.IGNORECASE)
"""How many ranks a script of Lightning starts itself."""

Spelling = Literal["value", "pair", "switch"]
"""How a flag is spelled: `--x=1`, `--x` or `--no-x`, `--x` or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOption:
    """An option of a script: its flag, and today's value, which is also the first choice."""

    flag: str
    default: Value | None
    choices: tuple[Value, ...] = ()
    spelling: Spelling = "value"
    required: bool = False

    @property
    def knob(self) -> str:
        """The name of its knob."""
        return _knob(self.flag)

    @property
    def proposed(self) -> tuple[Value, ...]:
        """The choices of the knob, today's value first."""
        if self.default is None:
            return ()
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
    def is_tuned(self) -> bool:
        """Whether its name is known to change the speed."""
        if UNTUNED.search(self.knob):
            return False
        return TUNED.search(self.knob) is not None

    @property
    def word(self) -> str:
        """The word of the command that passes it."""
        place = f"{{{self.knob}}}"
        return f"{self.flag}={place}" if self.spelling == "value" else place


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a script shows of itself.

    `arguments` are those of today that are no knobs, `global_batch` what it takes where the
    variable GLOBAL_BATCH is not set. Of a script with a trainer of a library, `callback` fits it,
    `trainer_line` is where it is made, `arguments_line` where its `TrainingArguments` are, if these
    do not come from the command line, and `device_count` how many ranks it starts itself.
    """

    path: Path
    options: tuple[ScriptOption, ...]
    has_ranks: bool
    reports_steps: bool
    uses_torch: bool
    loop: TrainingLoop | None = None
    global_batch: int | None = None
    callback: str | None = None
    trainer_line: int | None = None
    arguments_line: int | None = None
    device_count: int | None = None
    arguments: tuple[str, ...] = ()
    by_throughput: bool = False
    framework: str | None = None
    """The recipe of the framework that it imports, if there is one."""

    @property
    def knobs(self) -> tuple[ScriptOption, ...]:
        """Options that change the speed, by their names.

        Without those that change the work of a step, unless throughput is the objective.
        """
        left_out = () if self.by_throughput else self.batch_sizes
        return tuple(option for option in self._tuned if option not in left_out)

    @property
    def batch_sizes(self) -> tuple[ScriptOption, ...]:
        """Options that change the work of a step, and for which no accumulation makes up."""
        if any(ACCUMULATION.search(option.knob) for option in self._tuned):
            return ()
        return tuple(
            option
            for option in self._tuned
            if BATCH.search(option.knob) and not MICRO_BATCH.search(option.knob)
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """Options that have to be given, and are not."""
        given = {word.partition("=")[0] for word in self.arguments}
        has_words = any(not word.startswith("-") for word in self.arguments)
        return tuple(
            option.flag
            for option in self.options
            if option.required
            and option.default is None
            and option.flag not in given
            and (option.flag.startswith("-") or not has_words)
        )

    @property
    def _tuned(self) -> tuple[ScriptOption, ...]:
        return tuple(o for o in self.options if o.is_tuned and len(o.proposed) > 1)


def needs_use_cpu(script: Script) -> bool:
    """Whether the ranks of a CPU train one model only if the command line says so."""
    inherits = TRAINING_ARGUMENTS.keys() <= {option.knob for option in script.options}
    given = any(word.startswith((USE_CPU, "--use-cpu")) for word in script.arguments)
    return inherits and script.has_ranks and not given


def read_script(
    path: Path, arguments: Sequence[str] = (), *, by_throughput: bool = False
) -> Script:
    """Read the options of a script's argparse, click, typer, tyro or dataclasses.

    `arguments` are those it is called with today. Raises `StudyError` for a file that is not
    Python.
    """
    try:
        tree = ast.parse(read_text(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise StudyError(f"{path} cannot be read as Python: {error}") from error
    options = {option.knob: option for option in _options(tree)}
    names = set(_names(tree))
    callback = next((CALLBACKS[module] for module in CALLBACKS if module in names), None)
    starts_ranks = callback == "lightning_callback"
    devices = next(filter(DEVICES.search, options), None) if starts_ranks else None
    left = tuple(_given(arguments, options, devices))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    trainers = [call for call in calls if ast.unparse(call.func).endswith("Trainer")]
    fixed = [c.lineno for c in calls if ast.unparse(c.func).endswith("TrainingArguments")]
    is_fixed = options.keys().isdisjoint(TRAINING_ARGUMENTS)
    return Script(
        path=path,
        options=tuple(options.values()),
        has_ranks=not names.isdisjoint(LAUNCHED),
        reports_steps="cclsearch" in names and not names.isdisjoint({"steps", *CALLBACKS.values()}),
        uses_torch=not names.isdisjoint({"torch", "accelerate", "deepspeed", *CALLBACKS}),
        loop=TrainingLoop.of(tree, next(filter(ACCUMULATION.search, options), None)),
        global_batch=next(_global_batches(tree), None),
        callback=callback,
        trainer_line=next((call.lineno for call in trainers), None),
        arguments_line=next(iter(fixed), None) if is_fixed else None,
        device_count=_device_count(trainers, options.get(devices or "")) if starts_ranks else None,
        arguments=left,
        by_throughput=by_throughput,
        framework=next((name for name in FRAMEWORKS if name in set(_imported(tree))), None),
    )


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the packages that a script imports, in lower case."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0].lower() for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0].lower()


def _given(
    arguments: Sequence[str], options: dict[str, ScriptOption], devices: str | None
) -> Iterator[str]:
    """Set what is given to today's values; yield the arguments that are no knobs."""
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        negated = flag.removeprefix("--no-")
        option = options.get(_knob(flag)) or options.get(_knob(negated))
        is_set = option is not None and (option.is_tuned or option.knob == devices)
        if option is None or not flag.startswith("--") or not is_set:
            yield word
        elif option.spelling != "value":
            options[option.knob] = replace(option, default=flag == option.flag)
        else:
            today = _value(value if equals else next(words, ""))
            options[option.knob] = replace(option, default=today)
    if devices is not None:
        yield f"{options[devices].flag}={{rank_count}}"


def _value(text: str) -> Value:
    """Return what a word of the command line means."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _device_count(trainers: Sequence[ast.Call], option: ScriptOption | None) -> int | None:
    """Return how many ranks a trainer of Lightning starts; None where that is not written."""
    given = (k.value for call in trainers for k in call.keywords if k.arg == "devices")
    found = option.default if option is not None else next(map(_constant, given), None)
    return found if type(found) is int else None


def _knob(flag: str) -> str:
    return re.sub(r"\W", "_", flag.lstrip("-"))


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


def _options(tree: ast.AST) -> Iterator[ScriptOption]:
    parsed = _parsed_names(tree)
    yield from _inherited(*parsed)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument" | "option")):
                yield from _declared(node)
            case ast.FunctionDef() if node.name in parsed or _is_command(node):
                yield from _annotated(_parameters(node), "pair")
            case ast.ClassDef() if node.name in parsed:
                yield from _inherited(*(ast.unparse(base) for base in node.bases))
                yield from _annotated(_fields(node), parsed[node.name])
            case _:
                pass


def _inherited(*classes: str) -> Iterator[ScriptOption]:
    """Yield the known options of transformers where one of these classes has them."""
    if any(name.endswith("TrainingArguments") for name in classes):
        for name, (default, *others) in TRAINING_ARGUMENTS.items():
            yield ScriptOption(flag=f"--{name}", default=default, choices=tuple(others))


def _declared(call: ast.Call) -> Iterator[ScriptOption]:
    """Yield an option of argparse or click."""
    flags = [_constant(word) for word in call.args]
    long_flag = next((str(f).split("/")[0] for f in flags if str(f).startswith("--")), None)
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    if long_flag is None:
        if (name := str(flags[0]) if flags else "-").startswith("-") or "nargs" in named:
            return
        yield ScriptOption(flag=name, default=None, required="default" not in named)
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
    required = _constant(named.get("required")) is True
    yield ScriptOption(flag=long_flag, default=default, choices=choices, required=required)


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
    batch = script.global_batch or tokens_per_step or 1
    length = tokens_per_step // batch if tokens_per_step else 1
    known = "as the script reported" if tokens_per_step else "tokens of all ranks; to be completed"
    yield f"# cclsearch run -c FILE; written for {script.path.name}."
    yield f"name = {_toml(script.path.stem)}\n"
    same = "of the first configuration" if script.by_throughput else "the same in every trial"
    yield f"{'[workload]':<33}# the work of one step, {same}"
    yield f"name = {_toml(script.path.stem)}"
    yield f"{f'global_batch = {batch}':<33}# times sequence_length: {known}"
    yield f"sequence_length = {length}\n"
    if script.by_throughput:
        yield "[objective]                      # per second, so that the work of a step may vary"
        yield f"expression = {_toml(THROUGHPUT)}\n"
    yield from _command(script)
    yield "\n# The first choice of each knob is today's value; together they are the seed."
    factors = {} if script.by_throughput else _factors(script.knobs)
    for option in script.knobs:
        yield f"[space.{option.knob}]\nchoices = {_toml(factors.get(option.knob, option.proposed))}"
    if not script.knobs:
        yield "# No option was found that is known to change the speed. For --workers=4, say,"
        yield '# add "--workers={workers}" to run, and remove the # signs here:'
        yield "# [space.workers]\n# choices = [4, 2, 8]"
    if factors:
        work = math.prod(choices[0] for choices in factors.values())
        yield '\n[[constraint]]\nname = "same_work"'
        yield f'expression = "{" * ".join(factors)} == {work}"'
        yield 'reason = "every trial processes the same samples per step"'
    others = [option for option in script.options if option not in script.knobs]
    if others:
        yield "\n# Options left out, because they change the work or the result, or are not known:"
        yield f"# {', '.join(option.flag for option in others)}"
    yield "\n[measure]\ntimeout_s = 300.0                # of one launch"
    if not script.uses_torch:
        yield "profiled_steps = 0               # only scripts that use torch are profiled"
    yield "\n[budget]\ntrials = 12"


def _command(script: Script) -> Iterator[str]:
    """Yield how the script is launched."""
    start = ["torchrun", "--standalone", "--nproc-per-node={rank_count}"]
    words = [script.path.name, *(option.word for option in script.knobs), *script.arguments]
    rank_count = "world_size" if script.has_ranks else "1"
    if not script.has_ranks or script.device_count is not None:
        start = ["python"]
    if script.device_count is not None:
        rank_count = str(script.device_count)
    yield '[launch]\nrecipe = "command"\n\n[command]'
    yield f"run = {_toml([*start, *words])}"
    if USE_CPU in script.arguments:
        yield f"# Without {USE_CPU}, the Trainer trains a separate model on each rank of a CPU."
    yield f"rank_count = {_toml(rank_count)}"
    if not script.reports_steps:
        yield "# The script neither uses cclsearch.steps() nor a callback. If it prints step times:"
        yield "# step_time = 'step took (?P<ms>[0-9.]+) ms'"


def _factors(knobs: Sequence[ScriptOption]) -> Mapping[str, Sequence[int]]:
    """Return the choices of batch sizes and accumulation that together keep the work of a step.

    Today's come first; nothing where there is only one such knob.
    """
    factors = {
        each.knob: [choice for choice in each.proposed if isinstance(choice, int)]
        for each in knobs
        if (BATCH.search(each.knob) or ACCUMULATION.search(each.knob))
        and isinstance(each.default, int)
    }
    work = math.prod(choices[0] for choices in factors.values())
    equal = [each for each in itertools.product(*factors.values()) if math.prod(each) == work]
    kept = (list(dict.fromkeys(choices)) for choices in zip(*equal, strict=True))
    return dict(zip(factors, kept, strict=True)) if len(factors) > 1 else {}


def _toml(value: Value | Sequence[Value]) -> str:
    return json.dumps(value, ensure_ascii=False)
