"""Kept files are addressed by their content, stored once, and read back as they were or not."""

import gzip
import hashlib
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.traces.readers.files import STANDARD_LIMITS, read_bytes
from records.errors import StoreError
from records.store.artifacts import Artifacts

TEXT = '{"ph": "X", "name": "gemm"}\n' * 1000
LARGE = 9 << 20
"""Packed in a thread of its own."""


@pytest.fixture
def artifacts(tmp_path):
    return Artifacts(tmp_path / "kept")


def assert_refused(artifacts, kept):
    with pytest.raises(StoreError, match="was changed since it was recorded") as refused:
        artifacts.read(kept.digest, kept.size_bytes)
    assert "\n" not in str(refused.value)
    with pytest.raises(StoreError, match="was changed since it was recorded"):
        artifacts.check(kept.digest)


def test_text_is_stored_in_zstd_and_its_digest_and_size_are_those_of_the_text(artifacts):
    kept = artifacts.keep_text(TEXT, "rank0_trace.json")
    assert artifacts.path(kept.digest).name == f"{kept.digest}.zst"
    assert kept.size_bytes == len(TEXT)
    assert artifacts.size(kept.digest) == artifacts.path(kept.digest).stat().st_size
    assert artifacts.size(kept.digest) < len(TEXT) / 100


@settings(deadline=None, max_examples=40)
@given(piece=st.binary(max_size=300), times=st.integers(0, 3000))
def test_any_content_is_read_as_it_was(piece, times, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    (folder / "source").write_bytes(piece * times)
    artifacts = Artifacts(folder / "kept")
    kept = artifacts.keep(folder / "source", "source")
    assert artifacts.read(kept.digest, kept.size_bytes) == piece * times
    artifacts.copy(kept.digest, folder / "copy")
    assert (folder / "copy").read_bytes() == piece * times


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(TEXT.encode()),
        zstandard.compress(TEXT.encode()),
        random.Random(0).randbytes(300_000),
    ],
    ids=["gzip", "zstd", "noise"],
)
def test_what_does_not_get_smaller_is_stored_as_it_is(artifacts, tmp_path, packed):
    (tmp_path / "source").write_bytes(packed)
    kept = artifacts.keep(tmp_path / "source", "rank0_trace.json.gz")
    assert artifacts.path(kept.digest).name == kept.digest
    assert artifacts.path(kept.digest).read_bytes() == packed
    assert artifacts.read(kept.digest) == packed
    assert len(list(artifacts.all())) == 1


def test_a_large_file_is_the_same_packed_in_a_thread(artifacts, tmp_path):
    content = (TEXT * (LARGE // len(TEXT) + 1)).encode()
    (tmp_path / "source").write_bytes(content)
    kept = artifacts.keep(tmp_path / "source", "large")
    assert artifacts.size(kept.digest) < len(content) / 100
    assert artifacts.read(kept.digest) == content


def test_readers_of_traces_read_a_stored_file_where_it_lies(artifacts):
    kept = artifacts.keep_text(TEXT, "rank0_trace.json")
    assert read_bytes(artifacts.path(kept.digest), STANDARD_LIMITS) == TEXT.encode()


def test_a_file_of_an_older_version_is_read_and_not_stored_twice(artifacts):
    digest = artifacts.keep_text(TEXT, "a").digest
    packed = artifacts.path(digest)
    packed.with_suffix("").write_text(TEXT)
    packed.unlink()
    assert artifacts.read(digest) == TEXT.encode()
    artifacts.keep_text(TEXT, "b")
    assert [kept.path for kept in artifacts.all()] == [packed.with_suffix("")]


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_a_truncated_file_is_refused(artifacts, cut):
    kept = artifacts.keep_text(TEXT, "a")
    path = artifacts.path(kept.digest)
    path.write_bytes(path.read_bytes()[:cut])
    assert_refused(artifacts, kept)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_file_with_any_other_byte_is_never_read_as_something_else(data, tmp_path_factory):
    artifacts = Artifacts(tmp_path_factory.mktemp("kept"))
    kept = artifacts.keep_text(TEXT, "a")
    path = artifacts.path(kept.digest)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        assert artifacts.read(kept.digest) == TEXT.encode()
    except StoreError as error:
        assert "was changed since it was recorded" in str(error)


def test_a_file_that_unfolds_beyond_its_size_on_record_is_refused_at_once(artifacts, tmp_path):
    kept = artifacts.keep_text(TEXT, "a")
    bomb = zstandard.compress(bytes(1 << 30), level=1)
    artifacts.path(kept.digest).write_bytes(bomb)
    with pytest.raises(StoreError, match="was changed"):
        artifacts.read(kept.digest, kept.size_bytes)
    with pytest.raises(StoreError, match="was changed"):
        artifacts.check(kept.digest, kept.size_bytes)
    with pytest.raises(StoreError, match="was changed"):
        artifacts.copy(kept.digest, tmp_path / "copy", kept.size_bytes)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    with (
        artifacts.open(kept.digest, kept.size_bytes) as source,
        pytest.raises(StoreError, match="was changed"),
    ):
        source.read(1)


def test_a_damaged_file_is_mended_when_its_content_is_kept_again(artifacts):
    kept = artifacts.keep_text(TEXT, "a")
    artifacts.path(kept.digest).write_bytes(b"damaged")
    assert artifacts.keep_text(TEXT, "a") == kept
    assert artifacts.read(kept.digest) == TEXT.encode()
    assert len(list(artifacts.all())) == 1


def test_a_missing_file_is_one_line_and_has_no_size(artifacts):
    kept = artifacts.keep_text(TEXT, "a")
    artifacts.path(kept.digest).unlink()
    assert artifacts.size(kept.digest) is None
    artifacts.path(kept.digest).mkdir()
    with pytest.raises(StoreError, match=r"cannot read .*: Is a directory"):
        artifacts.check(kept.digest)
    artifacts.path(kept.digest).rmdir()
    with pytest.raises(StoreError, match=f"artifact {kept.digest} is missing from .*; restore"):
        artifacts.read(kept.digest)


@pytest.mark.parametrize("digest", ["", "../../../etc/passwd", "A" * 64, "ab" * 33, "/etc/passwd"])
def test_what_is_no_digest_names_no_file(artifacts, digest):
    for ask in (artifacts.path, artifacts.size, artifacts.read, artifacts.check):
        with pytest.raises(StoreError, match="is not the digest of a stored file"):
            ask(digest)


def test_a_copy_appears_whole_or_not_at_all(artifacts, tmp_path):
    kept = artifacts.keep_text(TEXT, "a")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trace.json").write_text("what was there")
    packed = artifacts.path(kept.digest).read_bytes()
    artifacts.path(kept.digest).write_bytes(packed[:-8])
    with pytest.raises(StoreError, match="was changed"):
        artifacts.copy(kept.digest, tmp_path / "out" / "trace.json")
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["what was there"]
    for folder in (tmp_path / "none", tmp_path / "out" / "trace.json"):  # which is a file
        with pytest.raises(StoreError, match="cannot write"):
            artifacts.copy(artifacts.keep_text("x", "x").digest, folder / "x")


def test_a_file_that_was_kept_again_is_not_removed(artifacts):
    kept = artifacts.keep_text(TEXT, "a")
    (stored,) = artifacts.all()
    os.utime(stored.path, (1.0, 1.0))
    assert artifacts.keep_text(TEXT, "a") == kept
    assert not artifacts.remove(stored, stored.kept_at_s)
    assert artifacts.read(kept.digest) == TEXT.encode()
    assert artifacts.remove(stored, time.time() + 1)
    assert artifacts.remove(stored, time.time() + 1)
    assert list(artifacts.all()) == []


def files(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_the_same_content_is_stored_once_under_any_name_which_does_not_choose_the_place(tmp_path):
    artifacts = Artifacts(tmp_path / "kept")
    one, other = (artifacts.keep_text("same", name) for name in ("a", "../../outside/the store"))
    assert one.digest == other.digest == hashlib.sha256(b"same").hexdigest()
    assert other.name == "../../outside/the store"
    assert files(tmp_path) == [tmp_path / "kept" / one.digest[:2] / one.digest]


def test_writers_of_the_same_content_at_once_leave_one_whole_file(tmp_path):
    text = "0123456789" * 50_000
    with ThreadPoolExecutor(8) as pool:
        kept = set(pool.map(lambda _: Artifacts(tmp_path).keep_text(text, "log"), range(24)))
    (one,) = kept
    assert files(tmp_path) == [Artifacts(tmp_path).path(one.digest)]
    assert Artifacts(tmp_path).read(one.digest).decode() == text
    assert one.size_bytes == len(text)


@pytest.mark.parametrize("name", ["gone", "folder"])
def test_what_cannot_be_read_is_an_error_that_names_it(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=f"cannot keep {tmp_path / name}: "):
        Artifacts(tmp_path / "kept").keep(tmp_path / name, "log")


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "kept").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="cannot keep log under "):
        Artifacts(tmp_path / "kept").keep_text("x", "log")
