"""Bundles from anybody: whatever is in them, an import takes all of it as it says, or nothing."""

import hashlib
import io
import json
import tarfile
import tempfile
import tracemalloc
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from records.errors import StudyError
from records.store.artifacts import Artifacts
from records.store.journal import StudyCreated, TrialFinished
from search.transfer import bundle as importing
from search.transfer.bundle import END, header, is_bundle, padding, read_bundle, write_bundle
from tests.support import records as testing

MANIFEST, STUDY = "manifest.json", "study.jsonl"


def packed(*members, end=END):
    text = b"".join(header(name, len(data)) + data + padding(len(data)) for name, data in members)
    return zstandard.ZstdCompressor().compress(text + end)


def member(data):
    return {"digest": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}


def manifest(study=b"", **changes):
    told = {"format": "cclsearch.bundle", "version": 1, "study_id": "s", "study_name": "n"}
    told |= {"made_by": "x", "study": member(study), "files": []}
    return json.dumps(told | changes).encode()


def bundle(study=b"", manifest_text=None, **changes):
    """A bundle of these records without files, or with this manifest."""
    return packed((MANIFEST, manifest_text or manifest(study, **changes)), (STUDY, study))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The members of a bundle that can be imported."""
    folder = tmp_path_factory.mktemp("sound")
    artifacts = Artifacts(folder / "artifacts")
    kept = tuple(artifacts.keep_text(f"text {n}", f"rank{n}.log") for n in range(2))
    trial = testing.trial(0, replace(testing.measured(), artifacts=kept), {"tp": 1})
    entries = (
        StudyCreated(study=testing.study(), version="test", created_at=testing.START),
        TrialFinished(trial=trial),
    )
    names = {"study_id": "s", "study_name": "n", "made_by": "test"}
    with (folder / "bundle").open("wb") as out:
        write_bundle(out, entries, artifacts, **names, allow_missing=False)
    packed = (folder / "bundle").read_bytes()
    text = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    with tarfile.open(fileobj=io.BytesIO(text)) as archive:
        return [(each.name, archive.extractfile(each).read()) for each in archive]


@pytest.fixture
def refused(tmp_path):
    """Reads bytes as a bundle; gives the one line of its refusal, which leaves nothing."""

    def run(content):
        path = tmp_path / "bad.cclsearch"
        path.write_bytes(content)
        with pytest.raises(StudyError) as refusal:
            read_bundle(path)
        assert list(tmp_path.rglob("*")) == [path]
        (line,) = str(refusal.value).splitlines()
        return line

    return run


NAMES = [
    *("../evil", "/etc/passwd", "files/../../evil", "files/", "files/x", MANIFEST),
    *("files/" + "0" * 63, "files/" + "0" * 64, "a" * 99, STUDY),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_member_of_another_name_is_refused(name, sound, refused):
    first, study, (_, data), *rest = sound
    assert "is expected" in refused(packed(first, study, (name, data), *rest))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE,
                                  tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_LONGNAME,
                                  tarfile.XHDTYPE])  # fmt: skip
def test_what_is_no_plain_file_is_refused(kind, sound, refused):
    first, study, (name, data), *_ = sound
    link = tarfile.TarInfo(name)
    link.type, link.linkname, link.size = kind, "/etc/passwd", len(data)
    text = b"".join(header(n, len(d)) + d + padding(len(d)) for n, d in (first, study))
    content = text + link.tobuf(tarfile.GNU_FORMAT) + data + padding(len(data)) + END
    assert "is expected" in refused(zstandard.ZstdCompressor().compress(content))


def test_a_refused_import_leaves_nothing_on_record(sound, cclsearch, tmp_path):
    path, store = tmp_path / "bad.cclsearch", tmp_path / "store"
    first, study, (name, data), *rest = sound
    path.write_bytes(packed(first, study, (name, data[:-1] + b"!"), *rest))
    ended = cclsearch("import", path, "--store", store)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert not list(store.glob("artifacts/??/*")) and not list(store.glob("journal/*"))


def test_what_is_twice_lacking_or_changed_is_refused(sound, refused):
    first, study, (name, data), *rest = sound
    changed = (name, data[:-1] + bytes([data[-1] ^ 1]))
    assert "more follows" in refused(packed(*sound, sound[-1]))
    assert "is expected" in refused(packed(*sound[:-1]))
    assert "SHA-256 differs" in refused(packed(first, study, changed, *rest))


def test_what_is_newer_is_refused_in_one_line(refused):
    line = refused(bundle(version=2))
    assert "version 2" in line and "newer one" in line
    assert "newer cclsearch" in refused(bundle(b'{"kind":"dreamt","entry":{}}\n'))


@pytest.fixture
def with_study(sound):
    """The sound bundle with other records, and a manifest for them."""

    def make(study):
        (_, told), (_, before), *files = sound
        assert study != before
        told = json.dumps({**json.loads(told), "study": member(study)}).encode()
        return packed((MANIFEST, told), (STUDY, study), *files)

    return make


def test_names_that_lead_out_of_a_folder_are_refused(sound, with_study, refused):
    study = dict(sound)[STUDY].replace(b'"rank0.log"', b'"../../rank0.log"')
    assert "../../rank0.log" in refused(with_study(study))


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[0], lines[1].replace(b'"ordinal": 0', b'"ordinal": %d' % 2**70)],
        lambda lines: [lines[1], lines[0]],
        lambda lines: [*lines, lines[0]],
        lambda lines: [lines[0], b"{}\n"],
        lambda lines: [lines[0], b'{"kind":' + b"[" * 9000 + b',"entry":{}}\n'],
    ],
    ids=["trial twice", "ordinal of 70 bits", "no study first", "two studies", "none", "deep"],
)
def test_records_that_contradict_each_other_are_refused(change, sound, with_study, refused):
    refused(with_study(b"".join(change(dict(sound)[STUDY].splitlines(keepends=True)))))


@pytest.mark.parametrize("study_id", ["../x", "", ".hidden", "a/b", "x" * 300])
def test_an_id_that_is_no_file_name_is_refused(study_id, refused):
    assert "study id" in refused(bundle(study_id=study_id))


def test_a_bomb_is_refused_before_it_unfolds(refused):
    told = manifest().replace(b'"size_bytes": 0', b'"size_bytes": %d' % (1 << 41))
    assert "sizes that no bundle has" in refused(packed((MANIFEST, told), end=b""))
    assert "bomb" in refused(bundle(bytes(66 << 20)))


def test_a_truncated_bundle_is_refused_wherever_it_ends(sound, tmp_path):
    whole, path = packed(*sound), tmp_path / "cut"
    for end in range(0, len(whole) - 1, max(1, len(whole) // 20)):
        path.write_bytes(whole[:end])
        with pytest.raises(StudyError):
            read_bundle(path)


@settings(max_examples=30)
@given(data=st.data())
def test_no_change_of_a_byte_is_imported_as_something_else(data, sound, tmp_path):
    text = bytearray(b"".join(header(n, len(d)) + d + padding(len(d)) for n, d in sound) + END)
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "changed"
    path.write_bytes(zstandard.ZstdCompressor().compress(bytes(text)))
    try:
        found = read_bundle(path)
    except StudyError as error:
        assert "\n" not in str(error)
    else:
        assert found.manifest.study.digest == member(dict(sound)[STUDY])["digest"]
        # What no digest covers is the manifest's own words, a header's spare bytes, and padding.
        assert len(found.manifest.files) == len(sound) - 2


def test_other_files_are_no_bundle(tmp_path):
    for content in (b"", b"{}", zstandard.compress(b"x" * 2000)):
        (tmp_path / "other").write_bytes(content)
        assert not is_bundle(tmp_path / "other")


def test_a_kill_while_files_are_unpacked_leaves_none(sound, tmp_path, monkeypatch):
    path, folder = tmp_path / "bundle", tmp_path / "folder"
    path.write_bytes(packed(*sound))
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    files = importing.unpacked_files(read_bundle(path))
    assert next(files).read_bytes()
    assert list(folder.iterdir()) == []
    files.close()


@pytest.mark.parametrize("filler", ["[],", "{},", "[[]],", '{"a":1},', "0,"])
def test_values_without_number_take_no_memory(filler, refused):
    most = (8 << 20) - 1000
    nested = filler * (most // len(filler)) + "0"
    values = manifest()[:-1] + f', "more": [{nested}]}}'.encode()
    tracemalloc.start()
    # Whatever it is not asked for is passed over; the study, which is empty, then stops it.
    assert "does not begin with a study" in refused(bundle(manifest_text=values))
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_a_manifest_is_small(refused):
    assert "takes" in refused(bundle(manifest_text=manifest() + b" " * (9 << 20)))


def test_a_line_holds_a_bounded_number_of_values(refused):
    line = b'{"kind":"study_changed","entry":{"summary":[' + b"[]," * 3_000_000 + b"0]}}\n"
    assert "holds more than" in refused(bundle(line))


def test_a_manifest_of_any_depth_is_refused(refused):
    values = manifest()[:-1] + b', "more": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    assert "not a bundle that can be imported" in refused(bundle(manifest_text=values))
