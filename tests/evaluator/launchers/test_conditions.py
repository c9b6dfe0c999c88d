"""What a machine did around a launch is measured, and too much of it is said in words."""

import subprocess
import sys
from dataclasses import replace

import pytest

from evaluator.launchers.conditions import conditions_between, gpu_conditions, take_snapshot
from records.codec import from_json, to_json
from records.machine import Conditions, GpuConditions
from records.trial import Measurement

QUIET = Conditions(
    load_average=0.5,
    others_cpu_share=0.2,
    steal_share=0.05,
    cpu_pressure_share=1.0,
    memory_pressure_share=0.0,
    io_pressure_share=None,
    available_memory_bytes=1 << 30,
    cpu_clock_hz=None,
    cpu_temperature_celsius=None,
)
SPIN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def write(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(root, *, user, idle, steal=0, stalled_us=0, available_kb=1000):
    write(
        root,
        proc__stat=f"cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 0 0 0 0\n",
        proc__pressure__cpu=f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled_us}\n",
        proc__loadavg="1.50 1.00 0.50 1/100 42\n",
        proc__meminfo=f"MemTotal: 9999 kB\nMemAvailable:    {available_kb} kB\n",
    )
    return replace(take_snapshot(root), own_ticks=0)


def test_shares_are_of_the_time_of_all_cores(tmp_path):
    before = machine(tmp_path, user=1000, idle=5000, steal=10)
    after = machine(tmp_path, user=1060, idle=5130, steal=20)

    between = conditions_between(before, replace(after, own_ticks=20))

    assert between.others_cpu_share == pytest.approx(0.2)
    assert between.steal_share == pytest.approx(0.05)


def test_ticks_that_were_counted_twice_are_nobodys(tmp_path):
    before = machine(tmp_path, user=100, idle=0)
    after = machine(tmp_path, user=110, idle=100)

    assert conditions_between(before, replace(after, own_ticks=12)).others_cpu_share == 0


def test_pressure_is_the_share_of_the_launch_in_which_a_task_waited(tmp_path):
    before = machine(tmp_path, user=0, idle=0)
    after = machine(tmp_path, user=1, idle=1, stalled_us=1_000_000)

    between = conditions_between(before, replace(after, at_s=before.at_s + 4))

    assert between.cpu_pressure_share == pytest.approx(0.25)


def test_memory_is_the_less_of_start_and_end(tmp_path):
    before = machine(tmp_path, user=0, idle=0, available_kb=5)
    after = machine(tmp_path, user=1, idle=1, available_kb=7)

    assert conditions_between(before, after).available_memory_bytes == 5 * 1024
    assert conditions_between(after, before).available_memory_bytes == 5 * 1024


def test_what_a_machine_does_not_tell_is_absent(tmp_path):
    nothing = take_snapshot(tmp_path)

    assert conditions_between(nothing, nothing) == Conditions(
        load_average=None,
        others_cpu_share=None,
        steal_share=None,
        cpu_pressure_share=None,
        memory_pressure_share=None,
        io_pressure_share=None,
        available_memory_bytes=None,
        cpu_clock_hz=None,
        cpu_temperature_celsius=None,
    )


def test_clock_is_the_mean_of_the_cores_and_heat_that_of_the_hottest_sensor(tmp_path):
    cpu = "sys__devices__system__cpu__cpu{}__cpufreq__scaling_cur_freq"
    write(
        tmp_path,
        **{cpu.format(0): "1000000\n", cpu.format(1): "3000000\n"},
        sys__class__hwmon__hwmon0__name="coretemp\n",
        sys__class__hwmon__hwmon0__temp1_input="45000\n",
        sys__class__hwmon__hwmon0__temp2_input="61500\n",
        sys__class__hwmon__hwmon1__name="nvme\n",
        sys__class__hwmon__hwmon1__temp1_input="90000\n",
    )

    snapshot = take_snapshot(tmp_path)

    assert snapshot.cpu_clock_hz == 2e9
    assert snapshot.cpu_temperature_celsius == 61.5


def test_what_our_own_processes_use_is_not_that_of_others():
    before = take_snapshot()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    after = take_snapshot()

    assert after.own_ticks - before.own_ticks >= 30


def test_at_the_limits_a_launch_is_quiet():
    assert QUIET.disturbances == ()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"others_cpu_share": 0.21}, "other processes used 21% of the cores"),
        ({"steal_share": 0.06}, "the hypervisor gave away 6% of the cores"),
        (
            {
                "gpus": (
                    GpuConditions(sm_clock_hz=1e9, temperature_celsius=90, slowed_by=("heat",)),
                )
            },
            "GPU 0 was slowed by heat",
        ),
    ],
)
def test_beyond_a_limit_a_launch_is_disturbed(changed, words):
    assert replace(QUIET, **changed).disturbances == (words,)


def test_a_driver_tells_clock_heat_and_what_slows_a_gpu(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    rows = "1980, 61, 0x0000000000000024\\n345, [N/A], 0x0000000000000001\\n[N/A], 40, [N/A]\\n"
    tool.write_text(f"#!/bin/sh\nprintf '{rows}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert gpu_conditions() == (
        GpuConditions(
            sm_clock_hz=1980e6,
            temperature_celsius=61,
            slowed_by=("power cap", "heat (software)"),
        ),
        GpuConditions(sm_clock_hz=345e6, temperature_celsius=None, slowed_by=()),
        GpuConditions(sm_clock_hz=None, temperature_celsius=40, slowed_by=None),
    )


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'"])
def test_a_driver_that_does_not_answer_tells_of_no_gpu(script, tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert gpu_conditions() == ()


def test_conditions_survive_the_record_and_old_records_have_none():
    measurement = Measurement(
        step_times_s=((1.0,),),
        warmup_times_s=((1.0,),),
        losses=(1.0,),
        tokens_per_step=1,
        peak_memory_bytes=(1,),
        wall_s=1.0,
        device="cpu",
        torch_version=None,
    )
    watched = replace(measurement, conditions=QUIET)
    old = to_json(measurement).replace(', "conditions": null', "")

    assert from_json(Measurement, to_json(watched)) == watched
    assert from_json(Measurement, old).conditions is None
    assert "conditions" not in old
