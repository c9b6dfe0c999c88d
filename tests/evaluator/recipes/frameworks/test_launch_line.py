"""Launch lines: what starts the ranks, what they run, and what a shell script would start."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.recipes.frameworks import launch_line
from evaluator.recipes.frameworks.launch_line import LaunchLine, read_script_lines
from records.errors import StudyError

OURS = {"PATH": os.defpath, "HOME": "/nowhere", "EDITOR": "vi"}


def line_of(text: str) -> LaunchLine:
    return LaunchLine.of(shlex.split(text), Path("/work"))


@pytest.mark.parametrize(
    "parts",
    [
        "torchrun | train.py | --lr 1",
        "torchrun --nproc-per-node 4 --standalone | train.py | x",
        "torchrun --nproc_per_node=4 --tee 3 | -m pkg.train | --tp 2 -m 3",
        "torchrun --rdzv-backend c10d --no-python | ./serve | a",
        "python -m torch.distributed.run --nnodes 1 | train.py | --b",
        "python3 -u -m torch.distributed.launch | -m pkg.train | x",
        "accelerate launch --multi_gpu --num_processes 2 | train.py |",
        "accelerate launch --multi-gpu --mixed-precision bf16 | train.py | a",
        "accelerate launch --use_fsdp --fsdp_version 2 | -m pkg.train |",
        "python -m accelerate.commands.launch --cpu | train.py |",
        "/opt/bin/deepspeed --num_gpus 2 --no_local_rank | train.py | --deepspeed ds.json",
        "| vllm serve | model -tp 2",
        "| /opt/venv/bin/vllm bench | throughput --model m",
        "| python train.py | x -c y",
        "| python3.11 -u -X dev -m MaxText.train | base.yml a=1",
        "| python -c 'import a' | x",
        "| ./train.py | --x",
    ],
)
def test_a_line_is_a_launcher_a_program_and_arguments(parts):
    launcher, program, arguments = (tuple(shlex.split(part)) for part in parts.split("|"))

    line = LaunchLine.of((*launcher, *program, *arguments), Path("/work"))

    assert (line.launcher, line.program, line.arguments) == (launcher, program, arguments)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torchrun a.py", "torchrun"),
        ("/x/accelerate launch a.py", "accelerate"),
        ("python -m torch.distributed.run a.py", "torchrun"),
        ("python -m accelerate.commands.launch a.py", "accelerate"),
        ("deepspeed a.py", "deepspeed"),
        ("python a.py", ""),
    ],
)
def test_a_launcher_is_known_however_it_is_started(text, name):
    assert line_of(text).launcher_name == name


@pytest.mark.parametrize("before", ["", "exec ", "env ", "nohup ", "time ", "nohup env "])
def test_variables_before_a_command_are_those_of_the_line(before):
    line = line_of(f"{before}A=1 B='x y=z' torchrun train.py C=3")

    assert line.environment == {"A": "1", "B": "x y=z"}
    assert line.words == ("torchrun", "train.py", "C=3")


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("", 1),
        ("--nnodes 2", 2),
        ("--nnodes=1:4", 4),
        ("--nnodes=$NODES", 1),
        ("--num_machines 3", 3),
        ("--num-nodes=2", 2),
    ],
)
def test_the_nodes_of_a_line_are_those_that_its_launcher_is_told(options, count):
    assert line_of(f"torchrun {options} train.py --nnodes 9").node_count == count


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the launch line is empty"),
        ("A=1 exec", "the launch line is empty"),
        ("torchrun --nproc-per-node 2", "starts no program"),
        ("accelerate launch", "starts no program"),
    ],
)
def test_a_line_without_a_program_is_refused(text, said):
    with pytest.raises(StudyError, match=said):
        line_of(text)


def test_the_python_of_a_line_is_that_of_its_program(tmp_path):
    (tmp_path / "python").symlink_to(sys.executable)
    for name, first in (("torchrun", f"#!{tmp_path}/python"), ("vllm", "#!/bin/sh")):
        (tmp_path / name).write_text(f"{first}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)

    for text in ("torchrun a.py", "vllm serve m", "python a.py", f"{tmp_path}/vllm serve m"):
        line = LaunchLine.of(text.split(), tmp_path, search_path=str(tmp_path))
        assert line.python == tmp_path / "python"


def test_a_program_that_is_not_there_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(
        StudyError, match="'torchrun' of the launch line is not on the PATH; activate"
    ):
        _ = LaunchLine.of(["torchrun", "a.py"], tmp_path, search_path=str(tmp_path)).python


def test_files_of_the_folder_become_full_paths_also_as_values_of_options(tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.toml").touch()
    words = "torchrun train.py --c=conf/a.toml conf/a.toml conf/none.toml conf 1.5 --x=./conf"

    located = LaunchLine.of(words.split(), tmp_path).located()

    assert " ".join(located.words) == (
        f"torchrun {tmp_path}/train.py --c={tmp_path}/conf/a.toml {tmp_path}/conf/a.toml "
        f"conf/none.toml conf 1.5 --x={tmp_path}/conf"
    )


def test_a_model_that_a_server_is_given_by_the_name_of_its_folder_becomes_a_full_path(tmp_path):
    (tmp_path / "tiny").mkdir()
    words = ["vllm", "serve", "tiny", "--served-model-name", "tiny"]

    located = LaunchLine.of(words, tmp_path).located()

    assert located.arguments == (f"{tmp_path}/tiny", "--served-model-name", "tiny")


def started(tmp_path: Path, script: str, *arguments: str) -> list[str]:
    """Each line that a script would start, as a shell would take it."""
    path = tmp_path / "train.sh"
    path.write_text(script, encoding="utf-8")
    return [shlex.join(line.words) for line in read_script_lines(path, arguments, OURS)]


SCRIPTS = {
    "continued lines and comments": (
        "set -euo pipefail\ntorchrun \\\n  --standalone \\\n  a.py \\\n  --tp 2  # two\n",
        ["torchrun --standalone a.py --tp 2"],
    ),
    "variables with defaults": (
        'N=${N:-2}\ntorchrun --nproc-per-node=$N a.py "$EDITOR"',
        ["torchrun --nproc-per-node=2 a.py vi"],
    ),
    "arrays": (
        'A=(--x "a b")\nA+=(--neg -1)\n[[ 1 < 2 ]] && A+=(--tp 2)\ntorchrun a.py "${A[@]}"',
        ["torchrun a.py --x 'a b' --neg -1 --tp 2"],
    ),
    "a whole command in an array or a variable": (
        'C=(torchrun a.py)\n"${C[@]}" --x\nD="python b.py"\n$D --y\neval "$D --z"',
        ["torchrun a.py --x", "python b.py --y", "python b.py --z"],
    ),
    "loops and conditions": (
        "for n in 1 2; do case $n in 2) torchrun a.py $n ;; esac; done\n"
        "[ -d / ] && python b.py || python c.py",
        ["torchrun a.py 2", "python b.py"],
    ),
    "functions and their arguments": (
        'run() { local x=$1; shift; torchrun a.py --x "$x" "$@"; }\nrun 1 "2 3"\nrun "$@"',
        ["torchrun a.py --x 1 '2 3'", "torchrun a.py --x first 'second word'"],
    ),
    "arguments of the script": ('exec torchrun a.py "$@"', ["torchrun a.py first 'second word'"]),
    "parameters that are set": ("set -- --x 1\ntorchrun a.py $@", ["torchrun a.py --x 1"]),
    "commands that describe the machine": (
        'N=$(seq 3 | wc -l)\ntorchrun --nproc-per-node=$N "$(basename /x/a.py)" `echo b`',
        ["torchrun --nproc-per-node=3 a.py b"],
    ),
    "pipes, redirections and the background": (
        "torchrun a.py 2>&1 | tee log &\npython b.py > log 2> >(tee err)\npython c.py &> log",
        ["torchrun a.py", "python b.py", "python c.py"],
    ),
    "redirections of groups": (
        "{ torchrun a.py; } > new 2>&1\n(\npython b\n) >> new\nfor i in 1; do python c; done > new",
        ["torchrun a.py", "python b", "python c"],
    ),
    "a function whose output goes to a file": (
        'run() { torchrun a.py "$1" "$(echo b)"; }\nrun 1 > log',
        ["torchrun a.py 1 b"],
    ),
    "redirections in front and in the middle": (
        "> log torchrun a.py\ntorchrun 2> log b.py < /dev/null",
        ["torchrun a.py", "torchrun b.py"],
    ),
    "here-documents": (
        "cat > conf.json <<EOF\n{\"a\": 1}\nEOF\npython - --x <<'EOF'\nprint(1 > 0)\nEOF\n",
        ["python - --x"],
    ),
    "quotes of all kinds": (
        "torchrun a.py 'it'\\''s' \"a > b\" $'x\\ty' a\\ b \"\" '$HOME' \"{}\"",
        ["torchrun a.py 'it'\"'\"'s' 'a > b' 'x\ty' 'a b' '' '$HOME' '{}'"],
    ),
    "numbers that are compared": (
        "if (( $(echo 4) > 3 )); then torchrun a.py; fi",
        ["torchrun a.py"],
    ),
    "absolute program paths": (
        "V=/opt/venv\n$V/bin/torchrun a.py\n/usr/bin/env -S python b.py",
        ["/opt/venv/bin/torchrun a.py"],
    ),
    "failing commands": ("set -e\nfalse\ncurl x || exit 1\ntorchrun a.py", ["torchrun a.py"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_followed_through(name, tmp_path):
    script, expected = SCRIPTS[name]
    log = tmp_path / "log"
    log.write_text("of an earlier run", encoding="utf-8")

    assert started(tmp_path, script, "first", "second word") == expected
    assert log.read_text(encoding="utf-8") == "of an earlier run"
    assert {path.name for path in tmp_path.iterdir()} <= {"train.sh", "log", "new"}


def test_what_a_script_exports_and_where_it_goes_are_part_of_its_line(tmp_path):
    (tmp_path / "sub").mkdir()
    script = (
        'cd "$(dirname "${BASH_SOURCE[0]}")/sub"\nexport A="x y" EDITOR\nB=1\nC=2 torchrun a.py\n'
    )
    (tmp_path / "train.sh").write_text(f"{script}export PATH=/opt:$PATH; python b.py")

    first, second = read_script_lines(tmp_path / "train.sh", (), OURS)

    assert first.folder == tmp_path / "sub"
    assert first.environment == {"A": "x y", "C": "2"}
    assert second.environment == {"A": "x y", "PATH": f"/opt:{os.defpath}"}


def test_scripts_that_a_script_starts_are_followed_too(tmp_path):
    (tmp_path / "env.sh").write_text("export A=1\n", encoding="utf-8")
    (tmp_path / "inner.sh").write_text('torchrun a.py "$B" "$@"', encoding="utf-8")
    (tmp_path / "direct").write_text("#!/bin/bash\npython b.py $1", encoding="utf-8")
    (tmp_path / "direct").chmod(0o755)

    lines = started(tmp_path, ". ./env.sh\nB=2 bash -e inner.sh x 'y z'\n./direct $A")

    assert lines == ["torchrun a.py 2 x 'y z'", "python b.py 1"]


@pytest.mark.parametrize(
    "command",
    [
        "mkdir made",
        "touch made",
        "/usr/bin/touch made",
        "T=touch; $T made",
        "X=$(touch made)",
        "echo `touch made`",
        "torchrun $(touch made) a.py",
        "torchrun <(touch made) a.py",
        'f() { torchrun "$(touch made)"; }; f > /dev/null',
        "echo text > made",
        "printf text >> made",
        ": > made",
        "exec > made",
        "cat /dev/null > made",
        "cat <<EOF > made\ntext\nEOF",
        "( touch made )",
        "touch made &",
        "eval 'touch made'",
        "if touch made; then :; fi",
        "for x in $(touch made); do :; done",
        "rm victim",
        "> victim",
        "{ echo x; } > victim",
        "sed -i s/old/new/ victim",
        "sed -e s/old/new/ --in-place=x victim",
        "sort -o victim /dev/null",
        "kill -9 $$",
        "trap 'touch made' EXIT",
        "exec touch made",
        "env touch made",
        "command touch made",
        "builtin kill $$",
        "curl -o made file:///etc/hostname",
    ],
)
def test_nothing_else_of_a_script_runs(command, tmp_path):
    (tmp_path / "victim").write_text("old", encoding="utf-8")

    assert started(tmp_path, f"{command}\npython last.py")[-1:] == ["python last.py"] or (
        command.startswith("exec")
    )

    assert (tmp_path / "victim").read_text(encoding="utf-8") == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.sh", "victim"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo hello",
            r"train.sh starts no torchrun, python, .*; give the command itself after --",
        ),
        ("if then", r"train.sh starts no .*syntax error near unexpected token `then'"),
        ("while true; do :; done", r"train.sh: reading it took more than 0.5 s; give the command"),
    ],
)
def test_a_script_that_cannot_be_followed_is_refused(script, said, tmp_path, monkeypatch):
    monkeypatch.setattr(launch_line, "READ_TIMEOUT_S", 0.5)

    with pytest.raises(StudyError, match=said):
        started(tmp_path, script)


def test_a_script_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StudyError, match="there is no such file"):
        read_script_lines(tmp_path / "none.sh", (), OURS)


@settings(max_examples=15)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\1\r\x7f"), max_size=12))
)
def test_every_word_of_a_line_arrives_as_the_shell_takes_it(tmp_path, words):
    line = shlex.join(["torchrun", "a.py", *words])
    script = f"echo begins\nrun() {{ {line} > log 2>&1; }}\nrun\n{line} | tee log"

    assert started(tmp_path, script) == [line, line]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("torchrun --nproc-per-node 4 a.py", 4),
        ("python -m torch.distributed.run --nproc_per_node=8 --nnodes 1 a.py", 8),
        ("torchrun --nproc-per-node=gpu a.py", None),
        ("accelerate launch --num_processes 2 a.py", 2),
        ("deepspeed --num_gpus=2 a.py", 2),
        ("python a.py --num_gpus 2", None),
    ],
)
def test_a_launcher_says_how_many_ranks_it_starts(text, count):
    line = line_of(text)

    assert (line.rank_count, line.node_count) == (count, 1)
