import json
import mmap
import os
import subprocess
import sys
from _multiprocessing import SemLock, sem_unlink
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.evaluate import TrialEvaluator
from evaluator.recipes.builtin import BuiltinRecipe
from records.trial import Config

SHARED_MEMORY = Path("/dev/shm")
REPLICATED = Config({"dp_replicate": 2, "micro_batch": 2})
SPLIT = Config({"tp": 2, "micro_batch": 4, "activation_checkpointing": "full"})


@pytest.fixture
def trained(study, launcher, tmp_path):
    """Trains warm in a folder of its own."""
    untraced = replace(study, measure=replace(study.measure, profiled_steps=0))
    evaluator = TrialEvaluator(BuiltinRecipe(), launcher, print)

    def run(config, name):
        folder = tmp_path / name
        folder.mkdir()
        return evaluator.evaluate(untraced, config, folder).measurement.losses

    return run


def test_configurations_in_turn_train_as_their_record_does_when_it_is_started_by_hand(
    trained, tmp_path
):
    replicated = trained(REPLICATED, "first")
    split = trained(SPLIT, "second")
    again = [trained(REPLICATED, "third"), trained(SPLIT, "fourth")]

    by_hand = tmp_path / "by hand"
    by_hand.mkdir()
    (by_hand / "job.json").write_text((tmp_path / "second" / "job.json").read_text())
    record = json.loads((tmp_path / "second" / "launch.json").read_text())
    subprocess.run(
        record["argv"],
        cwd=by_hand,
        env={"PATH": f"{Path(sys.executable).parent}:{os.defpath}", **record["environment"]},
        check=True,
        capture_output=True,
    )

    samples = [json.loads((by_hand / f"rank{rank}.steps.json").read_text()) for rank in (0, 1)]
    assert tuple(samples[0]["losses"]) == split
    assert sum(rank["tokens_per_step"] for rank in samples) == 8 * 32
    assert again == [replicated, split]


def test_the_environment_of_a_job_ends_with_it(launcher, job_of, tmp_path):
    told = []
    for name, environment in (("first", {"ONLY_HERE": "1"}), ("second", {})):
        folder = tmp_path / name
        folder.mkdir()
        job = job_of("misbehave", what="tell environment", rank=1, step=2)
        launcher.run(replace(job, environment=environment), folder, print)
        told.append(json.loads((folder / "environment.json").read_text()))

    differ = {name for name in {**told[0], **told[1]} if told[0].get(name) != told[1].get(name)}
    assert differ == {"ONLY_HERE", "TMPDIR", "CCLSEARCH_RENDEZVOUS", "CCLSEARCH_INIT_METHOD"}


def test_shared_memory_that_a_killed_rank_left_is_removed_and_nobody_elses(launch, request):
    kept = SHARED_MEMORY / f"data-of-{request.node.name}"
    kept.touch()
    request.addfinalizer(kept.unlink)

    launched = launch("leave shared memory")

    assert launched.result.reason == "finished"
    assert not (SHARED_MEMORY / (launched.folder / "shared_memory.txt").read_text()).exists()
    assert kept.exists()


def test_what_somebody_else_made_meanwhile_and_uses_is_left_alone(launcher, job_of, tmp_path):
    name = f"meanwhile-{os.getpid()}"
    memory, semaphore = SHARED_MEMORY / f"psm_{name}", SHARED_MEMORY / f"sem.{name}"
    made = []

    with ExitStack() as opened:

        def make_both(phase):
            if phase == "timed":
                file = opened.enter_context(memory.open("wb+"))
                opened.callback(memory.unlink)
                file.truncate(4096)
                opened.enter_context(mmap.mmap(file.fileno(), 4096))
                made.append(SemLock(1, 1, 1, f"/{name}", False))
                opened.callback(sem_unlink, f"/{name}")

        launcher.run(job_of("slow"), tmp_path, make_both)

        assert len(made) == 1
        assert memory.exists()
        assert semaphore.exists()


def test_sockets_pipes_and_temporary_files_of_a_rank_are_no_results(launch):
    left, made = launch("leave sockets and pipes"), launch("make a temporary file")

    assert left.result.reason == "finished"
    assert not list(left.folder.glob("left.*"))
    path = Path((made.folder / "temporary.txt").read_text())
    assert path.parent.name == "tmp"
    assert path.parents[1].name.startswith("cclsearch-")
    assert not path.parents[1].exists()
