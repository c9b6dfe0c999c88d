"""The training loop of a script, and the lines with which it reports its steps."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

WRAPPERS = frozenset({"enumerate", "tqdm", "tqdm.tqdm"})
"""Functions around what a loop is over."""
IDS = "input_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """Where a script trains: the line, what it becomes, and what to write below it."""

    line: int
    head: str
    body: str

    @classmethod
    def of(cls, tree: ast.AST, accumulated: str | None) -> Self | None:
        """Return the loop with an optimizer step, or else the innermost with a backward pass.

        `accumulated` is the option for how many passes a step has, if the script has one.
        """
        loops = [loop for loop in _loops(tree) if "backward" in _attributes(loop)]
        steps = [loop for loop in loops if "step" in _attributes(loop)] or loops
        if not steps:
            return None
        loop = max(steps, key=lambda each: each.lineno)
        has_inner = any(inner is not loop and inner in loops for inner in _loops(loop))
        passes = None if has_inner else accumulated and _spelled(tree, accumulated)
        return cls(line=loop.lineno, head=_head(loop, passes), body=_body(loop))


def _loops(tree: ast.AST) -> Iterator[ast.For]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.For))


def _attributes(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def _spelled(tree: ast.AST, option: str) -> str:
    """Return how the script reads an option, as in `args.accumulation`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == option:
            return ast.unparse(node)
    return option


def _is_wrapped(loop: ast.For) -> bool:
    call = loop.iter
    return isinstance(call, ast.Call) and bool(call.args) and ast.unparse(call.func) in WRAPPERS


def _head(loop: ast.For, passes: str | None) -> str:
    """Return the first line of the loop, over `cclsearch.steps`."""
    over = copy.deepcopy(loop.iter)
    inner = over.args[0] if _is_wrapped(loop) and isinstance(over, ast.Call) else over
    more = f", accumulate={passes}" if passes else ""
    steps = ast.parse(f"cclsearch.steps({ast.unparse(inner)}{more})", mode="eval").body
    if isinstance(over, ast.Call) and inner is not over:
        over.args[0] = steps
    else:
        over = steps
    target = ast.unparse(loop.target)
    if isinstance(loop.target, ast.Tuple):
        target = target.removeprefix("(").removesuffix(")")
    return f"for {target} in {ast.unparse(over)}:"


def _body(loop: ast.For) -> str:
    """Return the line that reports the work of one pass through the loop."""
    names = [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
    texts = {node.value for node in ast.walk(loop) if isinstance(node, ast.Constant)}
    batch = next(iter(names[1:] if _is_enumerated(loop) else names), "batch")
    if IDS in texts or any(_unpacks(call, batch) for call in ast.walk(loop)):
        return f'cclsearch.log(tokens={batch}["{IDS}"].numel())'
    if ast.unparse(loop.iter).startswith("range("):
        return "cclsearch.log(tokens=...)   # the tokens or samples of this rank"
    return f"cclsearch.log(tokens=len({batch}))   # samples; of token ids: {batch}.numel()"


def _is_enumerated(loop: ast.For) -> bool:
    return ast.unparse(loop.iter).startswith("enumerate(")


def _unpacks(node: ast.AST, name: str) -> bool:
    """Whether a call gets a batch as its keywords."""
    return isinstance(node, ast.Call) and any(
        keyword.arg is None and ast.unparse(keyword.value) == name for keyword in node.keywords
    )
