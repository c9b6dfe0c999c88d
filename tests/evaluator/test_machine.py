import os
from dataclasses import replace

import pytest

from evaluator.machine import check_local, core_count, local_environment, local_gpus
from records.errors import EnvironmentFault

GIB = 1 << 30
ONE_H200 = "echo 'NVIDIA H200, 143771, GPU-0a1b2c3d-0000'"
THREE_GPUS = "; ".join(f"echo 'GPU {n}, 1024, GPU-{n}{n}aa-0000'" for n in range(3))


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts an `nvidia-smi` on an otherwise empty path that does what a shell script says."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(script):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)

    return install


def test_a_machine_without_a_driver_holds_four_cpu_ranks(driver):
    assert driver is not None

    found = local_environment()

    assert (found.device, found.world_size, found.ranks_per_node) == ("cpu", 4, 4)
    assert found.memory_bytes is None
    assert found.accelerator
    assert core_count(found) == os.cpu_count()
    assert local_gpus() == ()


def test_every_gpu_of_the_driver_is_a_rank(driver):
    driver(f"{ONE_H200}; {ONE_H200}")

    found = local_environment()

    assert (found.device, found.world_size, found.ranks_per_node) == ("cuda", 2, 2)
    assert found.accelerator == "NVIDIA H200"
    assert found.memory_bytes == 143771 << 20


def test_the_driver_is_asked_for_names_mebibytes_and_identities(driver, tmp_path):
    driver(f'echo "$@" > {tmp_path}/asked')

    local_gpus()

    asked = (tmp_path / "asked").read_text().split()
    assert asked == ["--query-gpu=name,memory.total,uuid", "--format=csv,noheader,nounits"]


def test_a_gpu_that_shares_the_memory_of_its_host_has_none_of_its_own(driver):
    driver("echo 'NVIDIA GB10, [N/A], GPU-0a1b2c3d-0000'")

    assert local_gpus() == (("NVIDIA GB10", None),)
    assert local_environment().memory_bytes is None


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ("0,1,2", ["GPU 0", "GPU 1", "GPU 2"]),
        ("2, 0", ["GPU 2", "GPU 0"]),
        ("1", ["GPU 1"]),
        ("GPU-11aa", ["GPU 1"]),
        ("GPU-22aa-0000,0", ["GPU 2", "GPU 0"]),
        ("0,7,1", ["GPU 0"]),
        ("0,-1,1", ["GPU 0"]),
        ("1,1", []),
        ("GPU-", []),
        ("", []),
        ("-1", []),
        ("none", []),
    ],
)
def test_only_the_gpus_that_cuda_shows_us_are_ours(asked, left, driver, monkeypatch):
    driver(THREE_GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)

    assert [name for name, _ in local_gpus()] == left


def test_where_every_gpu_is_hidden_ranks_run_on_the_cpu(driver, monkeypatch):
    driver(ONE_H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert local_environment().device == "cpu"


@pytest.mark.parametrize(
    "script",
    [
        "exit 0",
        "exit 9",
        "echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9",
        "echo 'No devices were found'",
        "echo 'Failed, see the log, now'",
        "echo ', 143771, GPU-0a1b2c3d-0000'",
        "printf '\\377\\376, \\000, x\\n'",
        "kill -9 $$",
        f"{ONE_H200}; exit 15",
    ],
)
def test_a_driver_that_does_not_answer_leaves_the_cpu(script, driver):
    driver(script)

    assert local_gpus() == ()
    assert local_environment().device == "cpu"


def test_a_driver_that_cannot_be_started_leaves_the_cpu(driver, tmp_path):
    driver("")
    (tmp_path / "nvidia-smi").write_text("#!/no/such/interpreter\n")

    assert local_gpus() == ()


def test_more_cpu_ranks_than_the_machine_can_hold_are_refused(study):
    check_local(study.environment)
    large = replace(study.environment, world_size=100_000)

    with pytest.raises(EnvironmentFault, match=r"world_size 100000: .* set world_size to at most"):
        check_local(large)


def test_more_gpu_ranks_than_there_are_gpus_are_refused(driver, study):
    driver(ONE_H200)
    asked = replace(study.environment, device="cuda", world_size=1)
    check_local(asked)

    with pytest.raises(EnvironmentFault) as refusal:
        check_local(replace(asked, world_size=2))

    assert str(refusal.value) == (
        "[environment] world_size 2: this machine can hold 1 GPUs; "
        "set world_size to at most 1 or device to 'cpu'"
    )


def test_gpus_are_refused_where_there_is_none(driver, study):
    driver("exit 9")

    with pytest.raises(EnvironmentFault, match=r"can hold 0 GPUs; set device to 'cpu'$"):
        check_local(replace(study.environment, device="cuda", world_size=1))
