"""Metrics by name: built in, added by packages, and from the user's file.

Packages add metrics by entry points of the group `cclsearch.metrics`. The user's file is run and is
no more confined than a program that the user starts, so only a trusted file may be given; policies,
which a model writes, never get here. The digest of what defines a metric reveals other code under
the same version.
"""

import ast
import inspect
import math
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Final

from evaluator.metrics.base import (
    PUBLISHED_PREFIX,
    Absent,
    Evidence,
    Metric,
    MetricError,
    contract_fault,
    describe_error,
    published,
)
from records.errors import shown, suggestion
from records.files import read_text
from records.study import digest
from records.trial import MetricValue

GROUP: Final = "cclsearch.metrics"

_NAMES: Final = {
    "throughput": (
        "step_time tokens_per_s rank_count avg_step_time step_period rank_seconds "
        "rank_seconds_per_token tokens_per_s_per_rank cost_per_step cost_per_million_tokens "
        "ttft ttft_p50 ttft_p99 tpot tpot_p50 tpot_p99 output_tokens_per_s goodput peak_memory"
    ),
    "compute": (
        "mfu achieved_tflops dominant_kernel_concentration mean_sm_coverage "
        "compute_bound_fraction memory_bound_fraction moe_fraction average_memory_bandwidth "
        "kernel_launch_delay launches_per_step short_kernel_fraction host_wait_fraction"
    ),
    "communication": (
        "communication_fraction exposed_communication_fraction total_communication_time "
        "compute_comm_overlap compute_fraction idle_fraction bw_allreduce bw_allgather "
        "bw_reducescatter bw_alltoall bw_peertopeer bus_bandwidth latency straggler "
        "load_imbalance_ratio communication_volume collective_count pipeline_bubble_fraction "
        "memory_transfer_overhead"
    ),
    "utility": (
        "utility_communication utility_scale_up_bandwidth utility_scale_out_bandwidth "
        "utility_scale_up_domain utility_compute utility_no_straggler"
    ),
}
"""Metrics that come with us, by the module that defines each under its own name."""

_BUILT_IN: Final[Mapping[str, EntryPoint]] = {
    name: EntryPoint(name, f"evaluator.metrics.{module}:{name}", GROUP)
    for module, names in _NAMES.items()
    for name in names.split()
}

ALIASES: Final[Mapping[str, str]] = {"gpus": "rank_count", "memory_peak": "peak_memory"}
"""Names that others have for metrics of ours, where no metric is called so."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Every metric that has a value, and why each of the others has none, both by rising name."""

    values: tuple[MetricValue, ...]
    absent: Mapping[str, str]


def metric(name: str, added: Sequence[Metric] = ()) -> Metric:
    """The metric of this name. Raises MetricError when there is none, or it is broken."""
    if name in _BUILT_IN and not any(one.name == name for one in added):
        return _built_in(name)
    known = _origins(added)
    if name not in known:
        name = ALIASES.get(name, name)
    if name not in known and name.startswith(PUBLISHED_PREFIX):
        return published(name)
    if name not in known:
        hint = suggestion(name, sorted(known))
        raise MetricError(f"no metric is called {name!r}; {hint}")
    return _load(known[name])


def is_built_in(name: str) -> bool:
    """Whether a metric of this name comes with us."""
    return name in _BUILT_IN


def metric_names(added: Sequence[Metric] = ()) -> tuple[str, ...]:
    """Every metric that can be asked for, in alphabetical order."""
    return tuple(sorted(_origins(added)))


def loaded_metrics(added: Sequence[Metric] = ()) -> tuple[dict[str, Metric], dict[str, str]]:
    """Every metric by rising name, and why those that are broken cannot be asked.

    Raises MetricError only where two metrics have one name.
    """
    found: dict[str, Metric] = {}
    broken: dict[str, str] = {}
    for name, origin in sorted(_origins(added).items()):
        try:
            found[name] = _load(origin)
        except MetricError as error:
            broken[name] = str(error)
    return found, broken


def measure_all(evidence: Evidence, added: Sequence[Metric] = ()) -> Measures:
    """Ask every metric; one that is broken is absent and says how.

    Raises MetricError only where two metrics have one name.
    """
    found, broken = loaded_metrics(added)
    measures = measure_each(found.values(), evidence)
    return Measures(measures.values, dict(sorted((broken | dict(measures.absent)).items())))


def measure_each(metrics: Iterable[Metric], evidence: Evidence) -> Measures:
    """Ask these metrics; one that is broken is absent and says how."""
    values: list[MetricValue] = []
    absent: dict[str, str] = {}
    for one in sorted(metrics, key=lambda metric: metric.name):
        try:
            answer = measure(one, evidence)
        except MetricError as error:
            answer = Absent(str(error))
        if isinstance(answer, Absent):
            absent[one.name] = answer.reason
        else:
            values.append(answer)
    return Measures(tuple(values), absent)


def measure(one: Metric, evidence: Evidence) -> MetricValue | Absent:
    """Ask one metric. Raises MetricError when it fails or gives no finite number."""
    try:
        answer: object = one.measure(evidence)
        number = float(answer) if isinstance(answer, Real) else math.nan
    # The boundary to code that is not ours: whatever a metric raises, the others still answer.
    except Exception as error:
        raise MetricError(f"metric {one.name!r} failed: {describe_error(error)}") from error
    if isinstance(answer, Absent):
        return answer
    if isinstance(answer, bool) or not math.isfinite(number):
        raise MetricError(f"metric {one.name!r} gave {shown(answer)}, not a finite number")
    return MetricValue(
        name=one.name,
        value=number,
        unit=one.unit,
        better=one.better,
        version=one.version,
    )


def _origins(added: Sequence[Metric]) -> dict[str, EntryPoint | Metric]:
    """Where the metric of each name comes from."""
    entries = {**_BUILT_IN}
    for entry in entries_of_packages():
        other = entries.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise MetricError(
                f"metric {entry.name!r} is defined twice, by {other.value} and by {entry.value}"
            )
    origins: dict[str, EntryPoint | Metric] = {**entries}
    for one in added:
        if origins.setdefault(one.name, one) is not one:
            raise MetricError(f"metric {one.name!r} exists already; give yours another name")
    return origins


@cache
def entries_of_packages() -> tuple[EntryPoint, ...]:
    """The metrics that installed packages add; finding them reads a file of each package."""
    return tuple(entry_points(group=GROUP))


def _load(origin: EntryPoint | Metric) -> Metric:
    if not isinstance(origin, EntryPoint):
        return origin
    return _built_in(origin.name) if _BUILT_IN.get(origin.name) is origin else _loaded(origin)


@cache
def _built_in(name: str) -> Metric:
    return _loaded(_BUILT_IN[name])


def _loaded(origin: EntryPoint) -> Metric:
    try:
        loaded: object = origin.load()
    # Importing a package runs its code, which may raise anything.
    except Exception as error:
        raise MetricError(
            f"metric {origin.name!r} cannot be loaded: {describe_error(error)}"
        ) from error
    if not isinstance(loaded, Metric) or loaded.name != origin.name:
        raise MetricError(f"{origin.value} is not a metric named {origin.name!r}")
    fault = contract_fault(loaded)
    if fault is not None:
        raise MetricError(f"metric {origin.name!r} ({origin.value}) {fault}")
    return loaded


MODULE_NAME = "cclsearch_metrics_file"


def read_metrics_file(path: Path) -> tuple[Metric, ...]:
    """Every metric that is bound to a public name of the file, in order, to be handed in as added.

    What the file imports from elsewhere counts too, unless it is a class. Raises MetricError with
    the file, and the line where there is one, when it cannot be run, holds no metric, or one that
    does not keep to the contract.
    """
    return tuple(named_metrics(path).values())


def named_metrics(path: Path) -> Mapping[str, Metric]:
    """The same by the public name that each is bound to, the last one where it has several."""
    module = _run(path)
    found: dict[int, tuple[str, Metric]] = {}
    for name, value in vars(module).items():
        if not name.startswith("_") and not isinstance(value, type) and isinstance(value, Metric):
            fault = contract_fault(value)
            if fault is not None:
                raise MetricError(f"{path}: metric {name} {fault}")
            found[id(value)] = name, value
    if not found:
        raise MetricError(
            f"{path}: holds no metric; bind a Formula to a name that has no underscore"
        )
    return dict(found.values())


def _run(path: Path) -> ModuleType:
    spec = spec_from_file_location(MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise MetricError(f"{path}: is not a Python file; its name must end in .py")
    module = module_from_spec(spec)
    try:
        read_text(path)  # the loader would wait for a pipe, and read a device to its end
        spec.loader.exec_module(module)
    except OSError as error:
        raise MetricError(f"{path}: cannot be read: {error.strerror or error}") from error
    except SyntaxError as error:
        raise MetricError(f"{path}:{error.lineno}: {error.msg}") from error
    # The boundary to the user's code, which may raise anything.
    except Exception as error:
        raise MetricError(f"{path}{_line(path, error)}: {describe_error(error)}") from error
    return module


def _line(path: Path, error: Exception) -> str:
    """The last line of the file that was running, as `:line`."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f":{lines[-1]}" if lines else ""


TEXT_FIELDS: Final = ("label", "description", "differs")
"""Texts of a definition for people; they change no value."""


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
    digests: dict[str, str] = {}
    added: tuple[Metric, ...] = ()
    if metrics_file is not None:
        named, source = named_metrics(metrics_file), read_text(metrics_file)
        digests = {one.name: definition_digest(source, bound) for bound, one in named.items()}
        added = tuple(named.values())
    chosen = [metric(name, added) for name in names]
    for unmeasured in (one.name for one in chosen):
        if unmeasured.startswith(PUBLISHED_PREFIX):
            raise MetricError(f"{unmeasured} is only in records of other tools, and never computed")
    found, broken = loaded_metrics(added)
    if names:
        found, broken = {one.name: one for one in chosen}, {}
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
    waiting, reached = [name], {name}
    used: set[ast.stmt] = set()
    while waiting:
        for statement in binding.get(waiting.pop(), ()):
            used.add(statement)
            names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            needed = {node.id for node in names if isinstance(node.ctx, ast.Load)} - reached
            reached |= needed
            waiting += needed
    parts = [ast.unparse(_WithoutTexts().visit(each)) for each in tree.body if each in used]
    return digest("\n".join(parts) if parts else source)


def _of_package(name: str) -> str | None:
    origin = None if is_built_in(name) else _origins(()).get(name)
    if not isinstance(origin, EntryPoint):
        return None
    try:
        return definition_digest(inspect.getsource(sys.modules[origin.module]), origin.attr)
    except (OSError, TypeError):  # a compiled module has no source
        return digest(origin.value)


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]


class _WithoutTexts(ast.NodeTransformer):
    """Leaves out of calls what only people read."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """The call without its words."""
        node.keywords = [each for each in node.keywords if each.arg not in TEXT_FIELDS]
        return self.generic_visit(node)
