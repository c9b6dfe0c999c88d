"""Kept files are addressed by what is in them, are whole, and are stored once."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.errors import StoreError
from records.store.artifacts import Artifacts


def files(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_a_file_is_kept_under_the_digest_of_its_content(tmp_path):
    source = tmp_path / "rank0.log"
    source.write_bytes(b"\x00\xff" * 1000)
    kept = Artifacts(tmp_path / "kept").keep(source, "rank 0's log")
    assert kept.digest == hashlib.sha256(b"\x00\xff" * 1000).hexdigest()
    assert (kept.name, kept.size_bytes) == ("rank 0's log", 2000)
    assert Artifacts(tmp_path / "kept").read(kept.digest) == b"\x00\xff" * 1000
    assert source.exists()


@given(text=st.text())
@settings(deadline=None, max_examples=30)
def test_a_text_comes_back_as_it_was(text, tmp_path_factory):
    artifacts = Artifacts(tmp_path_factory.mktemp("kept"))
    kept = artifacts.keep_text(text, "text")
    assert artifacts.read(kept.digest).decode() == text


def test_the_same_content_is_stored_once_under_any_name(tmp_path):
    artifacts = Artifacts(tmp_path)
    one, other = artifacts.keep_text("same", "a"), artifacts.keep_text("same", "b")
    assert (one.name, other.name) == ("a", "b")
    assert one.digest == other.digest
    assert len(files(tmp_path)) == 1


def test_a_name_does_not_choose_the_place(tmp_path):
    kept = Artifacts(tmp_path / "kept").keep_text("x", "../../outside/the store")
    assert kept.name == "../../outside/the store"
    assert files(tmp_path) == [tmp_path / "kept" / kept.digest[:2] / kept.digest]


def test_an_empty_file_can_be_kept(tmp_path):
    assert Artifacts(tmp_path).keep_text("", "empty").size_bytes == 0
    assert len(files(tmp_path)) == 1


def test_writers_of_the_same_content_at_once_leave_one_whole_file(tmp_path):
    text = "0123456789" * 50_000
    with ThreadPoolExecutor(8) as pool:
        kept = set(pool.map(lambda _: Artifacts(tmp_path).keep_text(text, "log"), range(24)))
    (one,) = kept
    assert files(tmp_path) == [Artifacts(tmp_path).path(one.digest)]
    assert Artifacts(tmp_path).read(one.digest).decode() == text
    assert one.size_bytes == len(text)


def test_writers_of_different_contents_at_once_keep_all(tmp_path):
    texts = [str(n) * 1000 for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(lambda text: Artifacts(tmp_path).keep_text(text, "log"), texts))
    for one, text in zip(kept, texts, strict=True):
        assert Artifacts(tmp_path).read(one.digest).decode() == text


@pytest.mark.parametrize("name", ["gone", "folder"])
def test_what_cannot_be_read_is_an_error_that_names_it(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=f"cannot keep {tmp_path / name}: "):
        Artifacts(tmp_path / "kept").keep(tmp_path / name, "log")


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "kept").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="cannot keep log under "):
        Artifacts(tmp_path / "kept").keep_text("x", "log")
