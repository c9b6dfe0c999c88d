"""Files of raw samples are hostile too: what is wrong with one is a value, and nothing escapes."""

import os

import pytest

from evaluator.timing.nvbench.read import FILE_BYTES, SampleFile
from evaluator.timing.screening.estimate import Channel, Unusable

TWO = b"\x00\x00\x80?\x00\x00\x00@"  # 1.0 and 2.0


def reads(folder, name, count=2):
    return SampleFile(
        document=folder / "a.json", channel=Channel.TIMES, name=name, count=count
    ).read()


def unread(folder, name, count=2):
    found = reads(folder, name, count)
    assert isinstance(found, Unusable)
    return found


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "secret.bin").write_bytes(TWO)
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["../secret.bin", "a.json-bin/../../secret.bin", "/etc/hostname"])
def test_no_name_leads_out_of_the_folder(folder, name):
    (folder / "a.json-bin").mkdir()

    assert not unread(folder, name).is_gone


def test_no_link_leads_out_of_the_folder(folder):
    (folder / "0.bin").symlink_to("../secret.bin")
    (folder / "a.json-bin").symlink_to("..")

    assert not unread(folder, "0.bin").is_gone
    assert not unread(folder, "a.json-bin/secret.bin").is_gone


@pytest.mark.parametrize("name", ["", ".", "a\0b", "x" * 5000, "loop"])
def test_a_name_of_no_file_is_a_reason_not_a_crash(folder, name):
    (folder / "loop").symlink_to("loop")

    unread(folder, name)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_count_than_the_file_holds_is_unusable(folder, count):
    (folder / "0.bin").write_bytes(TWO)

    assert "8 bytes" in unread(folder, "0.bin", count).why


@pytest.mark.parametrize("count", [-1, FILE_BYTES // 4 + 1, 10**18])
def test_an_impossible_count_is_refused_before_anything_is_read(folder, count):
    (folder / "0.bin").write_bytes(TWO)

    assert f"cannot hold {count}" in unread(folder, "0.bin", count).why


def test_a_missing_or_empty_file_is_not_present(folder):
    (folder / "empty.bin").touch()

    assert unread(folder, "absent.bin").is_gone
    assert unread(folder, "empty.bin").is_gone


def test_a_pipe_is_not_waited_for(folder):
    os.mkfifo(folder / "0.bin")

    assert not unread(folder, "0.bin").is_gone
