"""A study file from the options of a script, which is read and never run."""

import tomllib

import pytest

from evaluator.machine import local_environment
from records.errors import StudyError
from search.study.script_study import needs_use_cpu, read_script, study_text
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
HF = """
from transformers import HfArgumentParser, Seq2SeqTrainingArguments, TrainingArguments
HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
"""
LIGHTNING = """
import lightning as L
parser.add_argument("--devices", type=int, default=2)
parser.add_argument("--num-workers", type=int, default=2)
L.Trainer(devices=args.devices)
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


def test_no_batch_size_is_proposed_that_no_accumulation_makes_up_for(written):
    _, study = written(HF)

    choices = {each.name: each.choices for each in study.space.dimensions}
    assert choices["per_device_train_batch_size"] == (8, 4)
    assert choices["gradient_accumulation_steps"] == (1, 2)


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


def test_options_inherited_from_training_arguments_are_known(written):
    for text in (HF, "class Own(TrainingArguments): x: int = 1\nHfArgumentParser(Own)"):
        knobs = {option.knob for option in written(text)[0].knobs}
        assert {"per_device_train_batch_size", "dataloader_num_workers"} <= knobs


@pytest.mark.parametrize(
    ("arguments", "values", "left"),
    [
        (["--num_workers=4", "--data", "x"], {"num_workers": 4}, ("--data", "x")),
        (
            ["--num_workers", "4", "--learning-rate", "1"],
            {"num_workers": 4},
            ("--learning-rate", "1"),
        ),
        (["--compile", "--no-fused"], {"compile": True, "fused": False}, ()),
        (["--unknown", "-v"], {}, ("--unknown", "-v")),
    ],
)
def test_arguments_of_today_become_the_first_choices(tmp_path, arguments, values, left):
    (tmp_path / "train.py").write_text(ARGPARSE, encoding="utf-8")

    script = read_script(tmp_path / "train.py", arguments)

    today = {option.knob: option.default for option in script.options}
    assert {name: today[name] for name in values} == values
    assert script.arguments == left


@pytest.mark.parametrize(
    ("text", "arguments", "rank_count", "last"),
    [
        (LIGHTNING, (), "2", "--devices={rank_count}"),
        (LIGHTNING, ("--devices", "4"), "4", "--devices={rank_count}"),
        ("import lightning\nTrainer(devices=3)", (), "3", "train.py"),
    ],
)
def test_lightning_starts_its_ranks_itself(tmp_path, text, arguments, rank_count, last):
    (tmp_path / "train.py").write_text(text, encoding="utf-8")

    command = tomllib.loads(study_text(read_script(tmp_path / "train.py", arguments)))["command"]

    assert (command["run"][0], command["run"][-1]) == ("python", last)
    assert command["rank_count"] == rank_count


@pytest.mark.parametrize(
    ("arguments", "needs"), [((), True), (("--use_cpu",), False), (("--use_cpu=True",), False)]
)
def test_a_trainer_whose_ranks_would_train_separately_needs_an_argument(tmp_path, arguments, needs):
    (tmp_path / "train.py").write_text(f"{HF}Trainer()", encoding="utf-8")

    assert needs_use_cpu(read_script(tmp_path / "train.py", arguments)) is needs


@pytest.mark.parametrize(
    ("loop", "head", "body"),
    [
        ("for x, y in data: x.backward()", "for x, y in cclsearch.steps(data):", "tokens=len(x)"),
        (
            "for i, batch in enumerate(data):\n model(**batch).backward()",
            "for i, batch in enumerate(cclsearch.steps(data)):",
            'tokens=batch["input_ids"].numel()',
        ),
        ("for i in range(9): loss.backward()", "in cclsearch.steps(range(9)):", "tokens=..."),
        (
            "for x in data:\n for part in x: part.backward()\n optimizer.step()",
            "for x in cclsearch.steps(data):",
            "tokens=len(x)",
        ),
        (
            'option("--accum", default=2)\nprint(a.accum)\nfor x in data: a.backward(), o.step()',
            "for x in cclsearch.steps(data, accumulate=a.accum):",
            "tokens=len(x)",
        ),
    ],
)
def test_the_lines_that_report_the_steps_are_written_for_the_loop(written, loop, head, body):
    script, _ = written(
        f'p.add_argument("--workers", default=2)\n{loop.replace("option(", "p.option(")}'
    )

    assert script.loop.head.endswith(head)
    assert body in script.loop.body


def test_a_script_shows_how_it_is_started_and_where_its_steps_are(written):
    script, _ = written(ARGPARSE)

    assert (script.has_ranks, script.reports_steps, script.loop.line) == (True, False, 14)
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
