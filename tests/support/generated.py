"""Made-up jobs of `benchmarks/`, read from the traces that they would leave."""

import sys
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from evaluator.traces.model import TraceSet
from evaluator.traces.readers.read import read_folder

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from generated_events import Style
from generated_job import Shape
from generated_traces import generate


@lru_cache(maxsize=32)
def generate_job(**shape: object) -> TraceSet:
    """The traces of a job of this shape; equal shapes are generated once."""
    with TemporaryDirectory() as folder:
        generate(Path(folder), Shape(**{k: v for k, v in shape.items()}), Style())  # type: ignore[arg-type]  # whatever a shape may be given
        return read_folder(Path(folder), use_cache=False)
