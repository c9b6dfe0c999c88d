"""Loads metrics from a Python file of the user's.

The file is run, with all that its user may do: it is no more confined than a program that the user
starts, so only a file that is trusted may be given. Policies, which a model writes, never get here.
"""

import traceback
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from evaluator.metrics.base import Metric, MetricError, contract_fault, raised

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
        raise MetricError(f"{path}: is no Python file; its name must end in .py")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise MetricError(f"{path}: cannot be read: {error.strerror or error}") from error
    except SyntaxError as error:
        raise MetricError(f"{path}:{error.lineno}: {error.msg}") from error
    # The boundary to the user's code, which may raise anything.
    except Exception as error:
        raise MetricError(f"{path}{_line(path, error)}: {raised(error)}") from error
    return module


def _line(path: Path, error: Exception) -> str:
    """The last line of the file that was running, as `:line`."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f":{lines[-1]}" if lines else ""
