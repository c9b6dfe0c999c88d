"""Configurations of a collective; as a script, twenty of them as JSON for the seed given."""

import json
import sys
from dataclasses import asdict

from evaluator.timing.fuzzer import FuzzedParameter, FuzzedTensor, Fuzzer, ParameterAlias


def job(seed):
    """Give a fuzzer whose constraint rejects about half of what it draws."""
    return Fuzzer(
        parameters=[
            FuzzedParameter(name="rank_count", distribution={2: 0.3, 4: 0.5, 8: 0.2}, strict=True),
            [
                FuzzedParameter(name="rows", minval=1, maxval=64, distribution="loguniform"),
                FuzzedParameter(name="columns", distribution={ParameterAlias("rows"): 0.5, 7: 0.5}),
            ],
            FuzzedParameter(name="scale", minval=0.5, maxval=2, distribution="uniform"),
        ],
        tensors=[FuzzedTensor(name="x", size=("rows", "columns"), steps=(1, 2), max_elements=900)],
        constraints=[lambda given: given["rows"] * given["columns"] % given["rank_count"] == 0],
        seed=seed,
    )


def listed(seed):
    """Give what a process says of its samples."""
    return json.dumps([asdict(sample) for sample in job(seed).take(20)])


if __name__ == "__main__":
    sys.stdout.write(listed(int(sys.argv[1])))
