"""A study file from the options of a script, which is read and never run."""

import tomllib

import pytest

from evaluator.machine import local_environment
from records.errors import StudyError
from search.study.script_study import read_script, study_text
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study, read_study_file

ARGPARSE = """
import argparse
import os
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch", type=int, default=8)
parser.add_argument("--num_workers", "-j", type=int, default=2, choices=[0, 2, 4])
parser.add_argument("--compile", action="store_true")
parser.add_argument("--fused", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--data", required=True)
dist.init_process_group()
for epoch in range(2):
    for batch in loader:
        loss.backward()
"""
CLICK = """
@click.command()
@click.option("--bucket-cap-mb", default=25)
@click.option("--attention", default="sdpa", type=click.Choice(["sdpa", "eager"]))
@click.option("--compile/--no-compile", default=False)
def main(): ...
"""
TYPER = """
@app.command()
def main(workers: Annotated[int, typer.Option()] = 0, compile: bool = False, lr: float = 1): ...
"""
TYRO = """
@dataclass
class Config:
    bucket_cap_mb: int = 25
    attention: Literal["sdpa", "eager"] = "sdpa"
    seed: int = field(default=0)
tyro.cli(Config)
"""
TRAINER = """
from transformers import HfArgumentParser, Trainer
@dataclass
class Arguments:
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = field(default=2, metadata={})
    torch_compile: bool = False
HfArgumentParser((Arguments,)).parse_args_into_dataclasses()
"""


@pytest.fixture
def written(tmp_path):
    """Reads a script, and the study that is written for it."""

    def read(text, tokens=None):
        path = tmp_path / "train.py"
        path.write_text(text, encoding="utf-8")
        script = read_script(path)
        (tmp_path / "study.toml").write_text(study_text(script, tokens), encoding="utf-8")
        study = completed(
            read_study_file(tmp_path / "study.toml", builtin_study(local_environment()))
        )
        return script, study

    return read


@pytest.mark.parametrize(
    ("text", "knobs"),
    [
        (
            ARGPARSE,
            {
                "micro_batch": (8, 4, 16),
                "num_workers": (2, 0, 4),
                "compile": ("", "--compile"),
                "fused": ("--fused", "--no-fused"),
            },
        ),
        (
            CLICK,
            {
                "bucket_cap_mb": (25, 12, 50),
                "attention": ("sdpa", "eager"),
                "compile": ("--no-compile", "--compile"),
            },
        ),
        (TYPER, {"workers": (0, 2, 4), "compile": ("--no-compile", "--compile")}),
        (TYRO, {"bucket_cap_mb": (25, 12, 50), "attention": ("sdpa", "eager")}),
        (
            TRAINER,
            {
                "per_device_train_batch_size": (8, 4, 16),
                "gradient_accumulation_steps": (2, 1, 4),
                "torch_compile": (False, True),
            },
        ),
    ],
)
def test_options_that_change_the_speed_become_knobs_with_the_default_first(written, text, knobs):
    script, _ = written(text)

    assert {option.knob: option.proposed for option in script.knobs} == knobs


def test_the_study_can_be_searched_and_its_seed_is_todays_configuration(written):
    _, study = written(ARGPARSE)

    assert dict(space_of(study).feasible[0].values) == {
        "micro_batch": 8,
        "num_workers": 2,
        "compile": "",
        "fused": "--fused",
    }
    assert study.command.run[:3] == ("torchrun", "--standalone", "--nproc-per-node={rank_count}")


def test_batch_size_and_accumulation_keep_the_work_of_a_step_together(written):
    _, study = written(TRAINER)

    sizes = {
        config["per_device_train_batch_size"] * config["gradient_accumulation_steps"]
        for config in space_of(study).feasible
    }
    assert sizes == {16}


def test_a_batch_size_that_nothing_makes_up_for_is_not_a_knob(written):
    script, _ = written(ARGPARSE.replace("--micro-batch", "--batch-size"))

    assert "batch_size" not in {option.knob for option in script.knobs}


@pytest.mark.parametrize(
    ("line", "tokens", "work"),
    [
        ("", 2048, (2048, 1)),
        ('os.environ.get("GLOBAL_BATCH", "32")', 2048, (32, 64)),
        ("", None, (1, 1)),
    ],
)
def test_the_work_of_a_step_is_what_the_script_reported(written, line, tokens, work):
    _, study = written(ARGPARSE + line, tokens)

    assert (study.workload.global_batch, study.workload.sequence_length) == work


def test_a_script_shows_how_it_is_started_and_where_its_steps_are(written):
    script, _ = written(ARGPARSE)

    assert (script.has_ranks, script.reports_steps, script.loop_line) == (True, False, 14)
    assert written(TRAINER)[0].callback == "trainer_callback"
    assert written(f"{ARGPARSE}\nimport cclsearch\ncclsearch.steps(x)")[0].reports_steps


def test_a_script_without_options_gets_an_example_to_complete(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print()", encoding="utf-8")

    text = study_text(read_script(path))

    assert "# [space.workers]" in text
    assert "space" not in tomllib.loads(text)


def test_every_option_that_is_left_out_is_named(written, tmp_path):
    written(ARGPARSE)

    text = (tmp_path / "study.toml").read_text(encoding="utf-8")
    assert "--learning-rate" in text
    assert "learning_rate" not in tomllib.loads(text)["space"]


@pytest.mark.parametrize("content", [b"def (", b"\xff\xfe\x00", b"x = 1\0"])
def test_a_file_that_is_not_python_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "train.py"
    path.write_bytes(content)

    with pytest.raises(StudyError, match=r"train\.py cannot be read as Python"):
        read_script(path)
