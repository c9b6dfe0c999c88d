"""aiconfigurator as a prior: what it is asked, what of it is recorded, and what happens without."""

import json
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.recipes.catalog import recipe_of
from evaluator.recipes.frameworks import aiconfigurator
from evaluator.recipes.frameworks.aiconfigurator import Point, model_of, point_of, system_of
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer, Parsed
from evaluator.recipes.frameworks.vllm import Vllm
from records.codec import from_json, to_json
from records.errors import StudyError
from records.study import Prior, Study
from search.strategies.offline import RankedChooser
from search.study.prior import with_prior
from search.study.spaces import completed, estimated, space_of
from search.study.study_file import builtin_study
from tests.support import records

H100 = "NVIDIA H100 80GB HBM3"
PACKAGE = """
import json, os
from pathlib import Path
from types import SimpleNamespace

# Qwen3-32B on h100_sxm by aiconfigurator 0.12.0, with its data of vllm 0.24.0: prompts of 1,024
# tokens, answers of 128, 32 requests, 2,048 tokens in an iteration; milliseconds by ranks.
TIMES = {1: (413.678, 51.821), 2: (262.934, 28.009), 4: (193.848, 17.157)}

def cli_estimate(model_path, system_name, *, backend_name, isl, osl, tp_size, **point):
    given = {"model": model_path, "system": system_name, "environment": dict(os.environ)}
    Path(os.environ["SEEN"]).write_text(json.dumps({**given, "folder": os.getcwd()}))
    if tp_size == 1 and os.environ.get("SMALL"):
        raise RuntimeError("OOM: the model does not fit in GPU memory")
    if os.environ.get("UNKNOWN"):
        raise ValueError("no database of this\\nmodel")
    if os.environ.get("SLOW"):
        import time
        time.sleep(60)
    ttft, tpot = TIMES[tp_size]
    if os.environ.get("WRONG"):
        ttft = 0.0
    return SimpleNamespace(ttft=ttft, tpot=tpot, backend_version="0.24.0")
"""


def server(accelerator: str = H100, *, device: str = "cuda", **sizes: int) -> Study:
    """A study of a server that has two knobs, on four GPUs."""
    work = {"global_batch": 128, "sequence_length": 1024, "output_length": 129, "layer_count": 64}
    work |= {"hidden_size": 5120, "head_count": 64, "kv_head_count": 8, "ffn_size": 25600}
    answer = Answer(
        versions={"vllm": "0.32.0"},
        parsed=(Parsed(values={"--max-num-seqs": 256, "--max-num-batched-tokens": 2048}),),
        workload={**work, "vocab_size": 151936, **sizes},
    )
    machine = replace(
        records.ENVIRONMENT, device=device, accelerator=accelerator, world_size=4, memory_bytes=None
    )
    line = LaunchLine.of(
        [sys.executable, "-m", "vllm.entrypoints.api_server", "--model", "m"], Path()
    )
    study = Vllm().study(line, builtin_study(machine), answer)
    kept = tuple(d for d in study.space.dimensions if d.name in {"tp", "enforce_eager"})
    study = replace(
        study,
        space=replace(study.space, dimensions=kept),
        workload=replace(study.workload, concurrency=(32,)),
    )
    objective = replace(study.objective, expression="step_time*gpus")  # ranks may be idle
    return completed(replace(study, objective=objective))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A stand-in for aiconfigurator that answers with recorded times; gives what it was asked."""
    package = tmp_path / "package"
    for name, text in {
        "aiconfigurator/__init__.py": "",
        "aiconfigurator/cli/__init__.py": "",
        "aiconfigurator/cli/api.py": textwrap.dedent(PACKAGE),
        "aiconfigurator-0.12.0.dist-info/METADATA": "Name: aiconfigurator\nVersion: 0.12.0\n",
    }.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    seen = tmp_path / "seen.json"
    monkeypatch.setenv("PYTHONPATH", str(package))
    monkeypatch.setenv("SEEN", str(seen))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-" + "k" * 40)
    return lambda: json.loads(seen.read_text(encoding="utf-8"))


def test_its_times_take_the_place_of_our_estimate_and_say_whose_they_are(installed):
    notices: list[str] = []

    study = with_prior(server(), notices.append)
    space = space_of(study)
    by_tp = {c.values["tp"]: estimated(study, space, c) for c in space.feasible}

    assert by_tp[2].parts_s == {
        "prefill": pytest.approx(4 * 0.262934),
        "decode": pytest.approx(4 * 128 * 0.028009),
    }
    assert by_tp[4].step_s < by_tp[2].step_s < by_tp[1].step_s
    words = "an estimate of aiconfigurator 0.12.0 (vllm 0.24.0 on h100_sxm), not a measurement"
    assert by_tp[2].words == words
    assert notices[0] == "asking aiconfigurator of 3 settings, at most 180 s"
    assert notices[1].endswith("none is a measurement")
    assert (installed()["model"], installed()["system"]) == ("m", "h100_sxm")


def test_it_sees_no_key_and_works_in_a_folder_of_its_own(installed):
    with_prior(server(), lambda _: None)

    assert not any("ANTHROPIC" in name for name in installed()["environment"])
    assert installed()["folder"] != str(Path.cwd())


@pytest.mark.usefixtures("installed")
def test_a_search_is_replayed_by_the_recorded_prior_without_the_tool():
    study = with_prior(server(), lambda _: None)
    again = from_json(Study, to_json(study))

    assert again.prior == study.prior
    space = space_of(again)
    chooser = RankedChooser(space, lambda config: recipe_of(again).estimate(again, config))
    assert chooser.choice(again, records.history(), [*space.feasible]).config.values["tp"] == 4


@pytest.mark.usefixtures("installed")
def test_what_does_not_fit_comes_last(monkeypatch):
    monkeypatch.setenv("SMALL", "1")
    study = with_prior(server(), lambda _: None)
    space = space_of(study)
    times_s = {c.values["tp"]: estimated(study, space, c).step_s for c in space.feasible}

    assert max(times_s, key=times_s.__getitem__) == 1


@pytest.mark.usefixtures("installed")
def test_the_prior_of_one_gpu_is_not_used_on_another():
    study = with_prior(server(), lambda _: None)
    other = replace(study, environment=replace(study.environment, accelerator="NVIDIA H200"))
    config = space_of(study).feasible[0]

    assert recipe_of(other).estimate(other, config) != recipe_of(study).estimate(study, config)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("variable", "accelerator", "said"),
    [
        ("UNKNOWN", H100, "'ValueError: no database of this model'; estimates are from sizes"),
        ("SLOW", H100, "it gave no answer in 1 s; estimates are from sizes alone"),
        ("WRONG", H100, "it answers with times that are not above 0"),
        ("NONE", "Other GPU", "it has no data of Other GPU"),
    ],
)
def test_without_an_answer_one_line_says_why_and_the_search_goes_on(
    monkeypatch, variable, accelerator, said
):
    monkeypatch.setenv(variable, "1")
    timeout_s = 1.0 if variable == "SLOW" else 60.0
    monkeypatch.setattr(aiconfigurator, "TIMEOUT_S", timeout_s)
    notices: list[str] = []

    study = with_prior(server(accelerator), notices.append)

    assert study.prior is None
    assert said in notices[-1]
    assert estimated(study, space_of(study), space_of(study).feasible[0]).words.startswith(
        "an estimate from sizes alone"
    )


def test_where_it_is_not_installed_a_line_says_how_to_get_it():
    notices: list[str] = []

    assert with_prior(server(), notices.append).prior is None
    assert notices[-1].startswith("estimates are from sizes alone; `pip install aiconfigurator`")


def test_on_cpus_and_of_other_scripts_nothing_is_asked_or_said():
    notices: list[str] = []

    assert with_prior(server(device="cpu"), notices.append).prior is None
    assert with_prior(builtin_study(records.ENVIRONMENT), notices.append).prior is None
    assert notices == []


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200", "h200_sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200_sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm"),
        ("NVIDIA A100-PCIE-40GB", "a100_pcie"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", None),
    ],
)
def test_its_name_of_a_system_follows_from_the_gpus(name, system):
    assert system_of(replace(records.ENVIRONMENT, accelerator=name)) == system


@pytest.mark.parametrize(
    ("command", "model"),
    [
        ("vllm serve org/model --tp 2", "org/model"),
        ("vllm serve --model org/model", "org/model"),
        ("vllm bench throughput --model=dir", "dir"),
        ("python -m sglang.launch_server --model-path dir", "dir"),
        ("vllm serve --config a.yaml", None),
    ],
)
def test_the_model_is_the_one_that_the_command_names(command, model):
    assert model_of(command.split()) == model


@pytest.mark.parametrize(
    ("experts", "settings", "point", "waves"),
    [
        (0, {"tp": 2, "dp": 2, "max_num_seqs": 8}, (2, 1, 1, None, None, 8, 2048), 8.0),
        (0, {"tp": 4, "pp": 2, "max_num_seqs": 64}, (4, 2, 1, None, None, 32, 2048), 4.0),
        (
            64,
            {"tp": 2, "dp": 4, "expert_parallel": True, "max_num_seqs": 64},
            (2, 1, 4, 1, 8, 8, 2048),
            4.0,
        ),
        (
            64,
            {"tp": 2, "dp": 1, "expert_parallel": False, "max_num_seqs": 64},
            (2, 1, 1, 2, 1, 32, 2048),
            4.0,
        ),
        (
            64,
            {"tp": 4, "ep": 2, "attention_dp": 2, "max_running_requests": 0},
            (2, 1, 2, 2, 2, 16, 8192),
            4.0,
        ),
    ],
)
def test_a_configuration_is_asked_as_one_server_with_its_share_of_the_requests(
    experts, settings, point, waves
):
    batched = {} if "ep" in settings else {"max_num_batched_tokens": 2048}
    study = server(expert_count=experts)

    asked, filled = point_of(study, {**settings, **batched})

    assert (asked, filled) == (Point(**dict(zip(Point.__slots__, point, strict=True))), waves)


def test_a_prior_with_other_times_than_it_has_parts_is_refused():
    with pytest.raises(StudyError, match=r"has other than 2 times"):
        Prior(source="", accelerator="", knobs=(), parts=("a", "b"), seconds={"[]": (1.0,)})
