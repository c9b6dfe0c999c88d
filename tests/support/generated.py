"""Made-up jobs of `benchmarks/`, read from the traces that they would leave."""

import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from evaluator.traces.model import TraceSet
from evaluator.traces.readers.read import read_folder

GENERATOR = Path(__file__).parents[2] / "benchmarks" / "generated_traces.py"


@lru_cache(maxsize=32)
def generate_job(**shape: object) -> TraceSet:
    """The traces of a job of this shape; equal shapes are generated once."""
    words = []
    for name, value in shape.items():
        option = f"--{name.replace('_', '-')}"
        words += [option] if value is True else [option, str(value)]
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, GENERATOR, folder, *words], check=True, capture_output=True)
        return read_folder(Path(folder), use_cache=False)
