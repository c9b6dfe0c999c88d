"""Batches are a function of the workload and the step, however they are dealt out."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evaluator.rank.job import Config, ContextMethod, JobError, Workload
from evaluator.workloads.context_parallel import own_positions
from evaluator.workloads.training import Batches
from tests.evaluator.conftest import rank_workload

WORKLOAD = rank_workload(vocab_size=100, sequence_length=16, global_batch=4)


LETTERS = b"the quick brown fox jumps over the lazy dog"


def take(workload: Workload):
    positions = torch.arange(workload.sequence_length)
    device = torch.device("cpu")
    return Batches(workload, replica=0, replica_count=1, positions=positions, device=device).take(3)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(LETTERS)
    return path


@pytest.mark.parametrize("method", list(ContextMethod))
def test_context_ranks_hold_every_place_once(method):
    config = Config(cp=4, context_method=method)

    held = torch.cat([own_positions(config, place, 16) for place in range(4)])

    assert sorted(held.tolist()) == list(range(16))


def test_ring_ranks_hold_a_part_from_either_end():
    assert own_positions(Config(cp=2), 0, 8).tolist() == [0, 1, 6, 7]


def test_a_text_gives_its_bytes_as_tokens(text):
    tokens, targets = take(replace(WORKLOAD, vocab_size=256, text_file=str(text)))

    for row, following in zip(tokens, targets, strict=True):
        assert bytes(row.tolist()) in LETTERS
        assert bytes(following.tolist())[:-1] == bytes(row.tolist())[1:]


def test_a_text_of_exactly_one_sequence_is_enough_and_stays_within_the_vocabulary(text):
    text.write_bytes(LETTERS[:17])

    tokens, _ = take(replace(WORKLOAD, vocab_size=10, text_file=str(text)))

    assert tokens.shape == (4, 16)
    assert int(tokens.max()) < 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"text_file: \S+ has 0 bytes, but a sequence takes 17"),
        (bytes(16), r"text_file: \S+ has 16 bytes, but a sequence takes 17"),
        ("missing", r"text_file: \S+ cannot be read: \[Errno 2\] .*"),
        ("folder", r"text_file: .* cannot be read"),
    ],
    ids=["empty", "too_small", "missing", "folder"],
)
def test_a_text_that_gives_no_sequence_is_one_line(tmp_path, content, message):
    path = tmp_path if content == "folder" else tmp_path / "text"
    if isinstance(content, bytes):
        path.write_bytes(content)

    with pytest.raises(JobError, match=message) as caught:
        take(replace(WORKLOAD, text_file=str(path)))

    assert "\n" not in str(caught.value)
