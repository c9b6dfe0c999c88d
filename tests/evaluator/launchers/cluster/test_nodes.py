"""What a study may ask of a cluster is checked before anything is submitted."""

from dataclasses import replace

import pytest

from evaluator.launchers.cluster.nodes import check_launcher, environment_for_nodes, nodes_of
from evaluator.launchers.cluster.scheduler import NAME_CHARS, job_name
from evaluator.recipes.command import CommandRecipe
from records.errors import StudyError
from records.study import Cluster, Command, Launch
from records.trial import Config
from tests.evaluator.conftest import small_study


def on_cluster(world_size=4, per_node=2, run=None, launcher="ssh", **cluster):
    study = small_study(launcher=launcher, recipe="command" if run else "builtin")
    environment = replace(study.environment, world_size=world_size, ranks_per_node=per_node)
    command = None if run is None else Command(run=run, rank_count="world_size")
    return replace(study, environment=environment, cluster=Cluster(**cluster), command=command)


def test_nodes_are_as_many_as_the_ranks_need():
    assert nodes_of(on_cluster(world_size=5, per_node=2)).count == 3


def test_more_nodes_may_be_asked_for_than_one_trial_takes():
    assert nodes_of(on_cluster(nodes=4)).count == 4


@pytest.mark.parametrize(
    ("study", "words"),
    [
        (on_cluster(nodes=1), "nodes is 1.*takes 2 of 2 ranks.*world_size to 2"),
        (replace(on_cluster(), launch=Launch(launcher="slum")), "did you mean 'slurm'"),
        (replace(on_cluster(), launch=Launch()), "needs another launcher than local"),
        (
            on_cluster(launcher="ray", account="team"),
            r"account: launcher 'ray' takes no account \(slurm, psij do\); leave it out",
        ),
        (on_cluster(launcher="slurm", hosts=("n1",)), r"takes no hosts \(ssh does\)"),
        (on_cluster(launcher="slurm-step", partition="gpu"), "'slurm-step' takes no partition"),
        (on_cluster(launcher="kubernetes", volume_claim="v"), "volume_claim needs shared_dir"),
        (on_cluster(run=("torchrun", "--standalone", "t.py")), "--standalone keeps torchrun on"),
        (on_cluster(run=("torchrun", "--nnodes=1", "t.py")), "--nnodes=1 keeps torchrun on"),
        (on_cluster(run=("torchrun", "--nnodes", "1", "t.py")), "keeps torchrun on one node"),
        (
            on_cluster(run=("torchrun", "--nproc-per-node={rank_count}", "t.py")),
            "all ranks on each node; write --nproc-per-node={ranks_per_node}",
        ),
        (
            on_cluster(run=("torchrun", "--nproc_per_node", "{rank_count}", "t.py")),
            "all ranks on each node",
        ),
    ],
)
def test_what_a_cluster_cannot_do_is_refused_before_nodes_are_asked_for(study, words):
    with pytest.raises(StudyError, match=words):
        check_launcher(study)


def test_jobs_on_a_cluster_cannot_be_isolated():
    study = on_cluster()

    with pytest.raises(StudyError, match="isolate is for this machine alone; leave it out with"):
        check_launcher(replace(study, launch=replace(study.launch, isolate=True)))


def test_a_command_for_one_node_may_say_that_it_is():
    check_launcher(on_cluster(world_size=2, run=("torchrun", "--standalone", "t.py")))


def test_places_of_nodes_are_filled_as_far_as_they_are_known():
    run = ("a", "{node_count}x{ranks_per_node}", "--rank={node_rank}", "{master_addr}")
    study = CommandRecipe().complete(on_cluster(run=run))

    job = CommandRecipe().job(study, Config({}))

    assert job.argv == ("a", "2x2", "--rank={node_rank}", "{master_addr}")


def test_a_shared_relative_folder_is_refused():
    with pytest.raises(StudyError, match="absolute path"):
        Cluster(shared_dir="runs")


def test_nodes_see_nothing_that_belongs_to_this_machine():
    ours = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3", "SLURM_PROCID": "0", "TMPDIR": "/tmp/x"}

    assert environment_for_nodes(on_cluster(), ours, is_shared=True) == {"PATH": "/bin"}
    assert environment_for_nodes(on_cluster(), ours, is_shared=False) == {}


def test_the_name_of_a_request_keeps_to_what_every_scheduler_takes():
    name = job_name("20261124-142926-208b", 12)

    assert name == "cclsearch-20261124-142926-208b-12"
    assert len(job_name("x" * 100, 3)) <= NAME_CHARS
