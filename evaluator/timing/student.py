"""Student's t distribution, from the standard library: reading a store must not load scipy."""

import math
from functools import lru_cache

_CLOSE = 1e-15
_SETTLED = 1e-12
_MOST_STEPS = 1_000
_MOST_TERMS = 20_000
_TINY = 1e-300


@lru_cache(maxsize=4096)
def student_quantile(level: float, freedom: float) -> float:
    """Return the value that Student's t stays below with this probability."""
    if not (0 < level < 1 and freedom > 0):
        raise ValueError(f"level {level} or freedom {freedom} is out of range")
    value = _exceeded_with(min(level, 1 - level), freedom)
    return value if level >= 0.5 else -value


def student_tail(value: float, freedom: float) -> float:
    """Return the probability that Student's t exceeds a value."""
    if value < 0:
        return 1 - student_tail(-value, freedom)
    if math.isinf(value):
        return 0.0
    square = value * value
    return 0.5 * _beta_share(square / (freedom + square), freedom / (freedom + square), freedom)


def _exceeded_with(tail: float, freedom: float) -> float:
    """Solve for the value; the tail is convex, so Newton's steps rise to it and never pass it."""
    value = 0.0
    for _ in range(_MOST_STEPS):
        step = (student_tail(value, freedom) - tail) / _density(value, freedom)
        value += step
        if step <= _SETTLED * value:
            break
    return value


def _density(value: float, freedom: float) -> float:
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    falling = (freedom + 1) / 2 * math.log1p(value * value / freedom)
    return math.exp(scale - falling) / math.sqrt(freedom * math.pi)


def _beta_share(below: float, above: float, freedom: float) -> float:
    """Regularised incomplete beta function of freedom/2 and 1/2 at `above`, which is 1 - below."""
    a, b = freedom / 2, 0.5
    if below == 0:
        return 1.0
    if above == 0:
        return 0.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_above = math.log(above) if above < 0.5 else math.log1p(-below)
    front = math.exp(log_front + a * log_above + b * math.log(below))
    if above < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, above) / a
    return 1 - front * _fraction(b, a, below) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, by Lentz's method."""
    upper, lower = 1.0, 1 / _apart_from_zero(1 - (a + b) * x / (a + 1))
    total = lower
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower = 1 / _apart_from_zero(1 + term * lower)
            upper = _apart_from_zero(1 + term / upper)
            change = lower * upper
            total *= change
        if abs(change - 1) < _CLOSE:
            return total
    raise ArithmeticError(f"no value of the incomplete beta function for {a}, {b}, {x}")


def _apart_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
