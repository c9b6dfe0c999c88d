import faulthandler
from pathlib import Path

from evaluator.failures.logs import stuck_places

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
