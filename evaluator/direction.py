"""Which way an expression over metrics is better, where all of its metrics agree.

A rule for each construct: the expression must rise or fall with each metric over all values that
the metric can have, and what is better for each must be better for the whole.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evaluator.metrics.base import Better, Metric
from evaluator.metrics.registry import is_built_in
from evaluator.readings import AT_SEED
from records.expression import seed_name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trend:
    """How a part behaves: None is `better` for a constant, 0 the `sign` of what may have both.

    A sign of 1 is never negative, one of -1 never positive.
    """

    better: Better | None
    sign: int


def which_is_better(body: ast.expr, metrics: Mapping[str, Metric]) -> Better | None:
    """Lower or higher; None where metrics disagree, or nothing here tells.

    Built-in metrics are taken to be never negative, which they are; of others nothing is known.
    """
    trend = _trend(body, metrics)
    return None if trend is None else trend.better


def _trend(node: ast.expr, metrics: Mapping[str, Metric]) -> _Trend | None:
    at_seed = seed_name(node)
    if at_seed is not None:
        return _Trend(better=None, sign=_sign(metrics[f"{at_seed}{AT_SEED}"]))
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return _Trend(better=None, sign=1 if number >= 0 else -1)
        case ast.Name(id=name):
            return _Trend(better=metrics[name].better, sign=_sign(metrics[name]))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _negated(_trend(operand, metrics))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_trend(left, metrics), right)
        case ast.BinOp(left=left, op=op, right=right):
            return _joined(op, _trend(left, metrics), _trend(right, metrics))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _called(name, [_trend(argument, metrics) for argument in args])
        case _:
            return None


def _sign(metric: Metric) -> int:
    return 1 if is_built_in(metric.name) else 0


def _joined(op: ast.operator, a: _Trend | None, b: _Trend | None) -> _Trend | None:
    match op:
        case ast.Add():
            return _sum([a, b])
        case ast.Sub():
            return _sum([a, _negated(b)])
        case ast.Mult():
            return _product(a, b)
        case ast.Div() | ast.FloorDiv():
            return _product(a, _inverse(b))
        case _:
            return None


def _negated(trend: _Trend | None) -> _Trend | None:
    return None if trend is None else _Trend(better=_other(trend.better), sign=-trend.sign)


def _inverse(trend: _Trend | None) -> _Trend | None:
    """One over it falls where it rises, on either side of zero but not across it."""
    if trend is None or not trend.sign:
        return None
    return replace(trend, better=_other(trend.better))


def _sum(trends: Sequence[_Trend | None]) -> _Trend | None:
    """Of terms that agree, as of what is the least or most of them."""
    known = [trend for trend in trends if trend is not None]
    ways = {trend.better for trend in known if trend.better is not None}
    if len(known) < len(trends) or len(ways) > 1:
        return None
    signs = {trend.sign for trend in known}
    return _Trend(better=next(iter(ways), None), sign=signs.pop() if len(signs) == 1 else 0)


def _product(a: _Trend | None, b: _Trend | None) -> _Trend | None:
    """Of factors that never change their sign, but for one beside a constant."""
    if a is None or b is None:
        return None
    ways = {
        trend.better if factor.sign > 0 else _other(trend.better)
        for trend, factor in ((a, b), (b, a))
        if trend.better is not None
    }
    unsure = any(trend.better is not None and not factor.sign for trend, factor in ((a, b), (b, a)))
    if unsure or len(ways) > 1:
        return None
    return _Trend(better=next(iter(ways), None), sign=a.sign * b.sign)


def _power(base: _Trend | None, exponent: ast.expr) -> _Trend | None:
    match exponent:
        case ast.Constant(value=bool() | int() | float() as number):
            pass
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as size)):
            number = -size
        case _:
            return None
    if base is None or base.sign <= 0 or not number:
        return None
    return base if number > 0 else _inverse(base)


def _called(name: str, arguments: Sequence[_Trend | None]) -> _Trend | None:
    if name in ("min", "max"):
        return _sum(arguments)
    trend = arguments[0] if len(arguments) == 1 else None
    if trend is None:
        return None
    if name == "abs":
        return trend if trend.sign > 0 else _negated(trend) if trend.sign else None
    return replace(trend, sign=0) if name.startswith("log") else trend


def _other(better: Better | None) -> Better | None:
    match better:
        case "lower":
            return "higher"
        case "higher":
            return "lower"
        case None:
            return None
