"""A small landscape with every kind of entry."""

import json

import pytest

from search.strategy_bench.landscape import Ground, read_landscape


@pytest.fixture
def document():
    """Six configurations: the best is tp=4, one fails, and knob `overlap` needs tp > 1."""
    return {
        "version": 1,
        "name": "tiny",
        "about": "for tests",
        "objective": {"expression": "step_time", "direction": "minimize"},
        "unit": "s",
        "workload": {"name": "decoder", "global_batch": 16, "sequence_length": 128},
        "environment": {
            "name": "bench",
            "device": "cpu",
            "accelerator": "cpu",
            "world_size": 4,
            "ranks_per_node": 4,
        },
        "space": {
            "dimensions": [
                {"name": "tp", "choices": [1, 2, 4, 8]},
                {"name": "overlap", "choices": [True, False], "when": "tp > 1"},
            ],
            "constraints": [{"name": "ranks", "expression": "tp <= world_size"}],
        },
        "seed": {"tp": 1},
        "entries": [
            {"config": {"tp": 1}, "samples": [2.0, 2.2, 1.9], "estimate": {"compute": 1.5}},
            {"config": {"tp": 2, "overlap": True}, "samples": [1.04]},
            {
                "config": {"tp": 2, "overlap": False},
                "failure": {"kind": "out_of_memory", "message": "9 GiB needed"},
            },
            {"config": {"tp": 4, "overlap": True}, "samples": [1.0]},
        ],
    }


@pytest.fixture
def landscape_file(tmp_path):
    """Writes a document as a landscape file."""

    def write(document, name="tiny.json"):
        path = tmp_path / name
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    return write


@pytest.fixture
def ground(document, landscape_file):
    return Ground(read_landscape(landscape_file(document)))
