"""Whole searches over collective setups, started as a person starts them."""

import pytest

import cclsearch as api
from evaluator.machine import mpi_library
from tests.support.service import run_cclsearch

QUICK = """
[environment]
device = "cpu"
world_size = 2
ranks_per_node = 2
[launch]
recipe = "collectives"
[measure]
max_timed_steps = 5
self_test_rounds = 0
race_rounds = 0
confirm_top = 1
confirm_rounds = 1
max_confirm_rounds = 1
infrastructure_retries = 0
[[message]]
collective = "all_reduce"
size_bytes = 65536
count = 4
"""


def searched(folder, knobs, *, trials):
    """The trials of a search over these knobs, and what was printed."""
    (folder / "study.toml").write_text(
        f"{QUICK}{knobs}[budget]\ntrials = {trials}\nlaunches = {trials}\n", encoding="utf-8"
    )
    ended = run_cclsearch(folder, "run", "-c", "study.toml", "--strategy", "coordinate")
    assert (ended.returncode, ended.stderr) == (0, "")
    return api.trials(store=folder / ".cclsearch"), ended.stdout


def test_a_search_over_gloo_measures_every_setup(tmp_path):
    trials, told = searched(
        tmp_path,
        """
[space.fusion_bytes]
choices = [0, 1048576]
[space.chunk_count]
choices = [1, 2]
[[constraint]]
name = "whole_or_together"
expression = "fusion_bytes == 0 or chunk_count == 1"
""",
        trials=3,
    )

    assert "3 measured, 0 failed" in told
    setups = trials[["config.fusion_bytes", "config.chunk_count"]].itertuples(index=False)
    assert set(map(tuple, setups)) == {(0, 1), (0, 2), (1048576, 1)}
    assert (trials["score"] > 0).all()


@pytest.mark.skipif(mpi_library() is None, reason="mpi4py loads no MPI library here")
def test_a_search_over_algorithms_of_open_mpi_measures_every_setup(tmp_path):
    trials, told = searched(
        tmp_path,
        """
[space.comm_adapter]
choices = ["mpi"]
[space.ompi_allreduce_algorithm]
choices = ["default", "ring"]
""",
        trials=2,
    )

    assert "2 measured, 0 failed" in told
    assert set(trials["config.ompi_allreduce_algorithm"]) == {"default", "ring"}
    best = told[told.index("best: ") :].splitlines()[0]
    assert "--comm-adapter=mpi" in best
