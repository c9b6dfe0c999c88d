import faulthandler
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.failures.logs import RULES, log_text, meaning, place, read_log, stuck_places
from records.trial import FailureKind
from tests.evaluator.failures.conftest import torchrun_summary

LOST = (
    "Traceback (most recent call last):\n"
    '  File "/home/user/train.py", line 8, in <module>\n'
    "    dist.all_reduce(total)\n"
    "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:8338: Connection reset by peer\n"
)
WRONG = (
    "Traceback (most recent call last):\n"
    '  File "/home/user/train.py", line 80, in step\n'
    "    layer(x)\n"
    '  File "/opt/lib/python3.11/site-packages/torch/nn/module.py", line 9, in call\n'
    "    return forward(x)\n"
    "ValueError: wrong shape\n"
)


def of_rank(rank, text):
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def found(*texts):
    finding = read_log("".join(texts))
    return finding.kind, finding.rank, f"{finding}{finding.where}"


IN_STEP = "ValueError: wrong shape at train.py:80 in step"
CHAINED = (
    "\nThe above exception was the direct cause of the following exception:\n\n"
    "Traceback (most recent call last):\n"
    '  File "/home/user/train.py", line 90, in <module>\n'
    "    main()\n"
    "RuntimeError: stage 0 failed\n"
)
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


@pytest.mark.parametrize(
    ("texts", "kind", "rank", "said"),
    [
        ((WRONG,), "crash", None, IN_STEP),
        ((WRONG, CHAINED), "crash", None, IN_STEP),
        (
            ("Exception ignored in: <function Group.__del__ at 0x7f>\n", LOST, WRONG),
            "crash",
            None,
            IN_STEP,
        ),
        ((of_rank(0, LOST), of_rank(1, WRONG), torchrun_summary()), "crash", 1, IN_STEP),
        ((of_rank(0, LOST), torchrun_summary(status=-11)), "crash", 1, "died of SIGSEGV"),
        ((of_rank(0, LOST), torchrun_summary(status=3)), "crash", 1, "ended with status 3"),
        (
            (of_rank(1, LOST), torchrun_summary()),
            "infrastructure",
            1,
            "the connection to another rank was lost: RuntimeError: [pair.cc:537]",
        ),
        ((of_rank(2, WRONG), of_rank(5, MEMORY)), "out_of_memory", 5, "device memory ran out"),
    ],
    ids=[
        *("a traceback", "chained exceptions", "an ignored exception", "a rank and its peer"),
        *("a silent death", "a silent end", "the first lost its peer", "memory"),
    ],
)
def test_a_log_gives_the_first_cause_its_rank_and_its_line(texts, kind, rank, said):
    told = found(*texts)

    assert told[:2] == (kind, rank)
    assert told[2].startswith(said)


def test_lines_of_ranks_that_are_mixed_are_put_together_again():
    lost, wrong = of_rank(0, LOST).splitlines(), of_rank(1, WRONG).splitlines()
    mixed = [line for pair in zip(lost, wrong, strict=False) for line in pair]

    kind, rank, said = found("\n".join([*mixed, *wrong[len(lost) :]]))

    assert (kind, rank) == ("crash", 1)
    assert said.startswith("ValueError: wrong shape")


def test_the_traceback_in_the_launchers_summary_is_read_too():
    indented = WRONG.replace("\n", "\n  ")

    kind, rank, said = found(torchrun_summary(traceback=indented))

    assert (kind, rank) == ("crash", 1)
    assert said == "ValueError: wrong shape at train.py:80 in step"


def test_a_message_of_several_lines_is_read_to_its_end():
    nccl = LOST.rpartition("RuntimeError")[0] + (
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:42, unhandled system error\n"
        "ncclSystemError: System call (e.g. socket, malloc) failed\n"
        "Last error:\n"
        "socketStartConnect: Connect to 10.0.0.1<5> failed : No route to host\n"
    )

    kind, _, said = found(nccl)

    assert kind == FailureKind.INFRASTRUCTURE
    assert said.startswith("a host or service cannot be reached: DistBackendError: NCCL error in")


@pytest.mark.parametrize(
    "marked", ["{rank}: {line}", "[default{rank}]:{line}", "(EngineCore_DP{rank} pid=77) {line}"]
)
def test_what_launchers_and_loggers_put_before_a_line_is_taken_off(marked):
    text = "\n".join(marked.format(rank=1, line=line) for line in WRONG.splitlines())

    assert found(text)[2] == "ValueError: wrong shape at train.py:80 in step"


@pytest.mark.parametrize(
    "text",
    ["Traceback (most recent call last):", 'Traceback (most recent call last):\n  File "x"\n\n'],
)
def test_a_traceback_that_is_cut_short_is_no_cause(text):
    assert read_log(text) is None


def test_a_log_cut_anywhere_is_read():
    for cut in range(0, 400, 7):
        read_log(of_rank(1, WRONG)[cut:] + torchrun_summary()[: 4 * cut])


def test_a_frame_of_the_program_is_preferred_and_a_librarys_better_than_none():
    library = '  File "/opt/lib/python3.11/site-packages/torch/nn/module.py", line 9, in call\n'

    assert place(WRONG) == " at train.py:80 in step"
    assert place(f"Traceback (most recent call last):\n{library}E: x") == " at module.py:9 in call"
    assert place("") == ""


def test_a_long_log_is_read_at_its_ends_and_around_its_first_traceback(tmp_path):
    path = tmp_path / "rank0.log"
    noise = f"{'all is well ' * 40}\n" * 5_000
    path.write_text(f"start\n{noise}{WRONG}{noise}end\n")

    text = log_text(path)

    assert len(text) < path.stat().st_size / 2
    assert text.startswith("start") and text.endswith("end\n")
    assert read_log(text).said == "ValueError: wrong shape"


def test_what_is_no_file_is_an_empty_log(tmp_path):
    os.mkfifo(tmp_path / "rank0.log")

    assert log_text(tmp_path / "rank0.log") == ""
    assert log_text(tmp_path / "rank1.log") == ""


DUMPED = """\
Thread 0x00007f10 (most recent call first):
  File "/opt/lib/python3.11/selectors.py", line 416 in select

Current thread 0x00007f20 (most recent call first):
  File "/opt/lib/python3.11/site-packages/torch/distributed_c10d.py", line 3 in all_reduce
  File "/opt/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/user/train.py", line 39 in step
  File "/home/user/train.py", line 90 in <module>
"""
SPIED = """\
Process 77: python train.py
Python v3.11.9 (/usr/bin/python3.11)

Thread 78 (idle): "Thread-1"
    wait (threading.py:320)
Thread 77 (active+gil): "MainThread"
    loads (/home/user/reader.py:12)
    <module> (/home/user/train.py:3)
"""


def keep(folder, **stacks):
    for name, text in stacks.items():
        (folder / f"{name}.stacks.txt").write_text(text)


def test_ranks_that_wait_in_the_same_place_are_told_together_after_the_one_that_does_not(tmp_path):
    alone = DUMPED.replace("all_reduce", "read").replace("train.py", "data.py")

    keep(tmp_path, rank0=DUMPED, rank1=DUMPED, rank2=alone, rank10=DUMPED)

    assert (
        stuck_places(tmp_path)
        == "rank 2 in read (data.py:39); ranks 0, 1, 10 in all_reduce (train.py:39)"
    )


def test_the_main_thread_of_what_py_spy_saw_is_told(tmp_path):
    keep(tmp_path, process77=SPIED)

    assert stuck_places(tmp_path) == "process 77 in loads (reader.py:12)"


def test_a_stack_as_python_itself_writes_it_is_read(tmp_path):
    with (tmp_path / "rank0.stacks.txt").open("w") as file:
        faulthandler.dump_traceback(file, all_threads=False)

    told = stuck_places(tmp_path)

    assert told.startswith(
        f"rank 0 in {test_a_stack_as_python_itself_writes_it_is_read.__name__}"[:60]
    )
    assert Path(__file__).name in told


def test_without_stacks_there_is_nothing_to_tell(tmp_path):
    keep(tmp_path, rank0="", rank1="noise\n")

    assert stuck_places(tmp_path) == ""


TEXTS = tomllib.loads(Path(__file__).with_name("failure_texts.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("said", TEXTS["memory"], ids=lambda said: said["text"][:60])
def test_memory_that_ran_out_is_known_by_its_text_and_how_much_was_asked_for(said):
    found = read_log(said["text"])

    assert found.kind is FailureKind.OUT_OF_MEMORY
    asked = f", {said['asked']} asked for" if "asked" in said else ""
    assert found.why == f"{said['why']}{asked}"


@pytest.mark.parametrize("kind", TEXTS["others"])
def test_a_message_from_the_world_outside_has_its_kind(kind):
    found = {text: read_log(text) for text in TEXTS["others"][kind]}

    assert {text: one and one.kind for text, one in found.items()} == dict.fromkeys(found, kind)


def test_a_line_of_a_job_that_runs_tells_of_no_failure():
    assert [text for text in TEXTS["harmless"] if read_log(text) is not None] == []


@pytest.mark.parametrize(
    "text", ["Resource temporarily unavailable", "RuntimeError: can't start new thread"]
)
def test_a_thread_that_cannot_start_lacks_memory_only_under_a_limit_on_it(text):
    assert meaning(text, memory_limited=True).kind is FailureKind.OUT_OF_MEMORY
    assert meaning(text).kind is FailureKind.INFRASTRUCTURE


@pytest.mark.parametrize(
    "text",
    [
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 720896 bytes",
        "std::bad_alloc",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.00 GiB for an array",
    ],
)
def test_a_rank_with_a_memory_budget_is_not_said_to_have_used_the_memory_of_its_machine(text):
    assert meaning(text).why == "host memory ran out"
    limited = meaning(text, memory_limited=True)
    assert (limited.kind, limited.why) == ("out_of_memory", "its memory budget ran out")


@given(text=st.sampled_from(RULES).flatmap(lambda rule: st.from_regex(rule.pattern)))
def test_no_text_that_a_rule_matches_is_passed_over(text):
    assert meaning(text) is not None


def test_an_error_in_a_box_is_told_without_the_box():
    found = read_log("│ Unrecognized options: --parallelism.tensor-parallel-degre       │")

    assert found.said == "Unrecognized options: --parallelism.tensor-parallel-degre"


def test_an_assertion_without_a_message_is_told_by_its_line():
    found = read_log(
        """Traceback (most recent call last):
  File "/job/parallel_dims.py", line 51, in _validate
    assert dp_shard >= 1
           ^^^^^^^^^^^^^
AssertionError
"""
    )

    assert (found.kind, found.said) == ("invalid_config", "AssertionError: assert dp_shard >= 1")
