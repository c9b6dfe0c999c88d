"""Metrics with the digest of what defines them, so that other code under one version is noticed."""

import ast
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evaluator.metrics.base import Metric, MetricError
from evaluator.metrics.from_file import named_metrics
from evaluator.metrics.published import PREFIX
from evaluator.metrics.registry import added_by, loaded_metrics, metric
from records.files import read_text
from records.study import digest

WORDS: Final = ("label", "description", "differs")
"""What a definition tells people; it changes no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A metric, and the digest of its source; None of one that comes with us."""

    metric: Metric
    digest: str | None


@dataclass(frozen=True, slots=True)
class Definitions:
    """Definitions by rising name of the metric, and why those that are broken cannot be asked."""

    known: tuple[Definition, ...]
    broken: Mapping[str, str]
    from_file: frozenset[str] = frozenset()
    """The names of those that the user's file holds."""


def definitions(metrics_file: Path | None, names: Sequence[str] = ()) -> Definitions:
    """The metrics of these names, or all of them; those of a file of the user's come with it.

    Raises MetricError for a name that is none, and for a file that is refused.
    """
    digests, added = _of_file(metrics_file) if metrics_file is not None else ({}, ())
    asked = [metric(name, added) for name in names]
    for told in (one.name for one in asked):
        if told.startswith(PREFIX):
            raise MetricError(f"{told} is told by records of other tools only, and never computed")
    found, broken = loaded_metrics(added)
    if names:
        found, broken = {one.name: one for one in asked}, {}
    known = (
        Definition(metric=one, digest=digests.get(name) or _of_package(name))
        for name, one in sorted(found.items())
    )
    return Definitions(tuple(known), broken, frozenset(digests))


def definition_digest(source: str, name: str) -> str:
    """Digest of the top-level statements that bind a name, and of all that they use.

    Comments, layout and what only people read do not count. Where nothing binds the name, as in a
    loop over `globals`, the whole text counts.
    """
    tree = ast.parse(source)
    binding: dict[str, list[ast.stmt]] = defaultdict(list)
    for statement in tree.body:
        for bound in _bound(statement):
            binding[bound].append(statement)
    waiting, seen = [name], {name}
    used: set[ast.stmt] = set()
    while waiting:
        for statement in binding.get(waiting.pop(), ()):
            used.add(statement)
            needed = set(_loaded(statement)) - seen
            seen |= needed
            waiting += needed
    parts = [ast.unparse(_Wordless().visit(each)) for each in tree.body if each in used]
    return digest("\n".join(parts) if parts else source)


def _of_file(path: Path) -> tuple[dict[str, str], tuple[Metric, ...]]:
    """Digests by the name of the metric, and the metrics of a file of the user's."""
    named = named_metrics(path)
    source = read_text(path)
    digests = {one.name: definition_digest(source, bound) for bound, one in named.items()}
    return digests, tuple(named.values())


def _of_package(name: str) -> str | None:
    origin = added_by(name)
    if origin is None:
        return None
    module, _, bound = origin.partition(":")
    try:
        return definition_digest(inspect.getsource(sys.modules[module]), bound)
    except (OSError, TypeError):  # no source lies beside a compiled module
        return digest(origin)


def _bound(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            return
        case _:
            pass
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]
            case _:
                pass


def _loaded(statement: ast.stmt) -> Iterable[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id


class _Wordless(ast.NodeTransformer):
    """Leaves out of calls what only people read."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """The call without its words."""
        node.keywords = [each for each in node.keywords if each.arg not in WORDS]
        return self.generic_visit(node)
