"""Expressions over named values, parsed from text and never run as Python.

Constraints and conditions name knobs, workload and environment fields; objectives and limits name
metrics, also those of the seed configuration, as in `step_time@seed`.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Self, TypeAlias

from records.errors import StudyError
from records.study import Constraint, Environment, Value
from records.workload import Workload

Operand: TypeAlias = Value | tuple[Value, ...]

MAX_LENGTH = 2000
MAX_DEPTH = 60
MAX_EXPONENT = 64

_SEED_NAME = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|([A-Za-z_]\w*)\s*@\s*seed\b""", re.DOTALL
)
"""A text in quotes, which stays as it is, or a name of what the seed had."""

_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda member, group: member in group,
    ast.NotIn: lambda member, group: member not in group,
}
_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "log": math.log,
    "log2": math.log2,
    "sqrt": math.sqrt,
}


class ExpressionError(StudyError):
    """The expression does not parse, or its value does not exist for these names."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; `names` are the values it reads."""

    text: str
    names: frozenset[str]
    body: ast.expr

    def evaluate(self, values: Mapping[str, Operand | None]) -> Operand:
        """Value for these names; raises `ExpressionError` for an unknown or absent one, or x/0."""
        try:
            return _evaluate(self.body, values)
        except (ArithmeticError, TypeError, ValueError, KeyError) as error:
            raise ExpressionError(f"{self.text!r}: {_why(error)}") from error

    def holds(self, values: Mapping[str, Operand | None]) -> bool:
        """Truth of the expression."""
        return bool(self.evaluate(values))

    def number(self, values: Mapping[str, Operand | None]) -> float:
        """Finite number the expression stands for; raises `ExpressionError` when it is none."""
        value = self.evaluate(values)
        try:
            number = float(_number(value))
        except (TypeError, OverflowError) as error:
            raise ExpressionError(f"{self.text!r}: {_why(error)}") from error
        if not math.isfinite(number):
            raise ExpressionError(f"{self.text!r} is {number}, not a finite number")
        return number


def narrow(expression: Expression, possible: Mapping[str, Set[str]]) -> str | None:
    """The expression without texts that these names never have; None where it then always holds."""
    body = _narrowed(expression.body, possible)
    if isinstance(body, bool):
        return None if body else str(body)
    return expression.text if body is expression.body else ast.unparse(body)


def parse(text: str) -> Expression:
    """Parse and check an expression; raises `ExpressionError` naming the construct it refuses."""
    text = text.strip()
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression of {len(text)} characters; at most {MAX_LENGTH}")
    try:
        body = ast.parse(_with_seed_names(text), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{text!r} is not an expression: {error}") from error
    names = frozenset(_names(body, text, MAX_DEPTH))
    return Expression(text, names, body)


def seed_name(node: ast.expr) -> str | None:
    """The name in `name@seed`, what the seed had; None for anything else."""
    match node:
        case ast.BinOp(left=ast.Name(id=name), op=ast.MatMult(), right=ast.Name(id="seed")):
            return name
        case _:
            return None


def _with_seed_names(text: str) -> str:
    """The text with `x@seed` in parentheses, as Python takes `a / x@seed` for `(a / x) @ seed`."""
    return _SEED_NAME.sub(lambda found: f"({found[0]})" if found[1] else found[0], text)


def _names(node: ast.expr, text: str, depth: int) -> set[str]:
    if depth == 0:
        raise ExpressionError(f"{text!r} is nested more than {MAX_DEPTH} deep")
    if (name := _name(node)) is not None:
        return {name}
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return set()
        case ast.BoolOp(values=children) | ast.Tuple(elts=children) | ast.List(elts=children):
            pass
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd(), operand=operand):
            children = [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            children = [left, right]
        case ast.Compare(left=left, ops=ops, comparators=rest) if {type(o) for o in ops} <= set(
            _COMPARE
        ):
            children = [left, *rest]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            children = [test, body, orelse]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            children = args
        case _:
            allowed = f"+ - * / // % ** comparisons and or not if in {' '.join(_FUNCTIONS)}"
            # Not unparse: it recurses as deep as the text is nested.
            source = ast.get_source_segment(_with_seed_names(text), node)
            refused = source or type(node).__name__
            raise ExpressionError(
                f"{text!r}: {refused!r} is not allowed; use names, numbers and {allowed}"
            )
    return set().union(*(_names(child, text, depth - 1) for child in children))


def _name(node: ast.expr) -> str | None:
    """What stands for a value: a name, or one of what the seed had."""
    at_seed = seed_name(node)
    if at_seed is not None:
        return f"{at_seed}@seed"
    return node.id if isinstance(node, ast.Name) else None


def _narrowed(node: ast.expr, possible: Mapping[str, Set[str]]) -> ast.expr | bool:
    """The node, a simpler one, or its truth where no text that may occur changes it."""
    match node:
        case ast.BoolOp(op=op, values=parts):
            return _narrowed_parts(node, op, [_narrowed(part, possible) for part in parts])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            found = _narrowed(operand, possible)
            if isinstance(found, bool):
                return not found
            return node if found is operand else ast.UnaryOp(ast.Not(), found)
        case ast.Compare(left=ast.Name(id=id) as name, ops=[op], comparators=[texts]) if (
            id in possible
        ):
            return _narrowed_comparison(node, name, op, texts, possible[id])
    return node


def _narrowed_parts(
    node: ast.BoolOp, op: ast.boolop, parts: list[ast.expr | bool]
) -> ast.expr | bool:
    deciding = isinstance(op, ast.Or)
    if deciding in [part for part in parts if isinstance(part, bool)]:
        return deciding
    left = [part for part in parts if not isinstance(part, bool)]
    if not left:
        return not deciding
    if left == node.values:
        return node
    return ast.BoolOp(op, left) if len(left) > 1 else left[0]


def _narrowed_comparison(
    node: ast.expr, name: ast.Name, op: ast.cmpop, compared: ast.expr, possible: Set[str]
) -> ast.expr | bool:
    """A name against texts, of which those that never occur are left out."""
    one = isinstance(op, ast.Eq | ast.NotEq)
    if not one and not isinstance(op, ast.In | ast.NotIn):
        return node
    members = compared.elts if isinstance(compared, ast.Tuple | ast.List) else [compared]
    texts = [m.value for m in members if isinstance(m, ast.Constant) and isinstance(m.value, str)]
    kept = [text for text in texts if text in possible]
    if len(texts) < len(members) or len(kept) == len(members):
        return node
    if not kept:
        return isinstance(op, ast.NotEq | ast.NotIn)
    if len(kept) > 1:
        return ast.Compare(name, [op], [ast.Tuple([*map(ast.Constant, kept)], ast.Load())])
    alike = ast.Eq() if isinstance(op, ast.In) else ast.NotEq()
    return ast.Compare(name, [alike], [ast.Constant(kept[0])])


def _evaluate(node: ast.expr, values: Mapping[str, Operand | None]) -> Operand:  # noqa: C901 - one arm per construct
    if (name := _name(node)) is not None:
        return _look_up(name, values)
    match node:
        case ast.Constant(value=value):
            return value  # type: ignore[return-value]  # _names let only scalars through
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(_scalar(_evaluate(e, values)) for e in elements)
        case ast.BoolOp(op=op, values=parts):
            return _first_deciding(parts, isinstance(op, ast.Or), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, values)
        case ast.UnaryOp(op=op, operand=operand):
            number = _number(_evaluate(operand, values))
            return -number if isinstance(op, ast.USub) else number
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(op, _number(_evaluate(left, values)), _number(_evaluate(right, values)))
        case ast.Compare(left=left, ops=ops, comparators=rest):
            return _compare(_evaluate(left, values), ops, (_evaluate(r, values) for r in rest))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, values) else orelse, values)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_number(_evaluate(a, values)) for a in args))
        case _:
            raise TypeError(f"cannot evaluate {type(node).__name__}")


def _look_up(name: str, values: Mapping[str, Operand | None]) -> Operand:
    if name not in values:
        raise KeyError(f"{name} is not known here; known are {', '.join(sorted(values))}")
    value = values[name]
    if value is None:
        raise KeyError(f"{name} is not given")
    return value


def _binary(op: ast.operator, left: float, right: float) -> float:
    if isinstance(op, ast.Pow) and abs(right) > MAX_EXPONENT:
        raise ValueError(f"exponent {right} is beyond {MAX_EXPONENT}")
    if isinstance(left, int) and isinstance(right, int) and max(abs(left), abs(right)) > 2**512:
        raise ValueError("an integer beyond 512 bits")
    result = _BINARY[type(op)](left, right)
    if isinstance(result, complex):
        raise TypeError("the value is a complex number")
    return result


def _first_deciding(
    parts: list[ast.expr], deciding: bool, values: Mapping[str, Operand | None]
) -> Operand:
    """Like Python: the part that settles `and` or `or`, and nothing after it is evaluated."""
    *others, last = parts
    for part in others:
        value = _evaluate(part, values)
        if bool(value) is deciding:
            return value
    return _evaluate(last, values)


def _compare(left: Operand, ops: list[ast.cmpop], rest: Iterable[Operand]) -> bool:
    for op, right in zip(ops, rest, strict=True):
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True


def _number(value: Operand) -> float:
    if isinstance(value, str | tuple):
        raise TypeError(f"{value!r} is not a number")
    return value


def _scalar(value: Operand) -> Value:
    if isinstance(value, tuple):
        raise TypeError("a list inside a list")
    return value


def _why(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__


_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MANY_UNITS = 1024


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint with its expression parsed."""

    constraint: Constraint
    expression: Expression

    @classmethod
    def of(cls, constraint: Constraint) -> Self:
        """Parse a constraint; raises `StudyError` when its expression is none."""
        return cls(constraint, parse(constraint.expression))

    @property
    def words(self) -> str:
        """Name, expression and reason, as one sentence."""
        reason = f" ({self.constraint.reason})" if self.constraint.reason else ""
        return f"{self.constraint.name}: {self.constraint.expression}{reason}"

    def broken(self, names: Mapping[str, Operand | None]) -> str | None:
        """How these values break the rule, with the numbers filled in; None where they do not."""
        if self.expression.holds(names):
            return None
        settings = (
            f"{name}={format_value(name, names[name])}" for name in sorted(self.expression.names)
        )
        return f"breaks {self.words} with {', '.join(settings)}"


_WORKLOAD_FACTS = (
    *("phase", "precision", "global_batch", "sequence_length", "output_length", "layer_count"),
    *("hidden_size", "head_count", "kv_head_count", "head_size", "ffn_size", "vocab_size"),
    *("expert_count", "experts_per_token", "shared_expert_count", "expert_ffn_size"),
    "dense_layer_count",
)
_ENVIRONMENT_FACTS = ("device", "world_size", "ranks_per_node", "memory_bytes")


def facts(workload: Workload, environment: Environment) -> dict[str, Value | None]:
    """Workload and environment fields that expressions may name."""
    return {name: getattr(workload, name) for name in _WORKLOAD_FACTS} | {
        name: getattr(environment, name) for name in _ENVIRONMENT_FACTS
    }


def format_value(name: str, value: Operand | None) -> str:
    """A value as a person reads it: bytes in the largest unit that leaves a number above 1."""
    if name.endswith("_bytes") and isinstance(value, int | float):
        return format_bytes(value)
    return str(value)


def format_bytes(size_bytes: float) -> str:
    """Bytes in the largest binary unit that leaves a number above 1."""
    for unit in _BINARY_UNITS[:-1]:
        if abs(size_bytes) < _MANY_UNITS:
            return f"{size_bytes:.4g} {unit}"
        size_bytes /= _MANY_UNITS
    return f"{size_bytes:.4g} {_BINARY_UNITS[-1]}"
