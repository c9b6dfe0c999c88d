"""What a redacted export no longer says, whatever the record says; and what it still does."""

import gzip
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from records.store.store import Store
from search.transfer.redact import Known, NotRedacted, Redactor, check_redacted, redact_file

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=3, max_size=12).filter(
    lambda name: not name.isdecimal() and name.strip("-") == name and Known().is_telling(name)
)


def redactor(**names):
    known = Known()
    for kind, name in names.items():
        known.add(kind, name)
    return Redactor(known)


def unpacked(content):
    return zstandard.ZstdDecompressor().decompressobj().decompress(content)


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "bundle", "entry"])
def test_no_name_is_left_in_any_format(form, recorded, export):
    ended, path = export(form, "--redact", *(("--incomplete",) if form == "entry" else ()))
    assert (ended.code, ended.err) == (0, "")
    assert "checked" in ended.out
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    text = b"".join(unpacked(f.read_bytes()) if form == "bundle" else f.read_bytes() for f in files)
    for name in (*recorded.names, "10.1.2.3", "train.py"):
        assert name.encode() not in text
    assert text


def test_a_redacted_bundle_can_be_imported_and_its_traces_read(
    recorded, export, cclsearch, tmp_path
):
    path, other = export("bundle", "--redact")[1], tmp_path / "other"
    assert cclsearch("import", path, "--store", other).code == 0
    assert cclsearch("trace", "breakdown", f"trial:{recorded.id}:0", "--store", other).code == 0
    with closing(Store(other)) as store:
        good, bad = store.history(recorded.id).trials
        log = store.artifacts.read(good.outcome.artifacts[0].digest).decode()
    assert log.startswith("host1: started by user1 as job job1\nloading /path")
    assert log.endswith(" from ip1\n")
    assert good.outcome.launched.hosts[0] == "host1"
    assert "host1" in bad.outcome.message and bad.exchange is None


def test_a_name_that_only_a_trace_tells_is_taken_out_of_what_came_before(tmp_path):
    log, trace = tmp_path / "a.log", tmp_path / "rank0_trace.json"
    log.write_text("alice and her files\n")
    trace.write_text(json.dumps({"traceEvents": [], "where": "/home/alice/x.json"}))
    redacting = redactor()
    for path in (log, trace):
        assert redact_file(path, path.name, tmp_path / "out", redacting) is None
    assert redacting.learnt()
    redact_file(log, log.name, tmp_path / "out", redacting)
    assert (tmp_path / "out").read_text() == "user1 and her files\n"
    assert not redacting.learnt()


@settings(max_examples=60, deadline=None)
@given(host=NAMES, user=NAMES, before=st.text(max_size=20), after=st.text(max_size=20))
def test_known_names_never_survive(host, user, before, after):
    redacting = redactor(host=host, user=user)
    text = f"{before} {host} /home/{user}/x {user}@{host}.example.org {after}"
    told = redacting.value({"a": [text], host: {"b": text.upper()}})
    redacting.learnt()
    check_redacted("it", [json.dumps(told, ensure_ascii=False).encode("utf-8", "replace")],
                   redacting.known)  # fmt: skip


@given(NAMES)
def test_the_same_name_is_the_same_word_everywhere(name):
    redacting = redactor(host=name)
    one, two = redacting.text(f"<{name}>"), redacting.text(f"rank0_{name.upper()}.log")
    assert one.strip("<>") in two


@pytest.mark.parametrize(
    "text",
    [
        *("step_time/step_time@seed", "global_batch % (dp * micro_batch) == 0", "0.5*(16/gpus)"),
        *("3.5 tokens/s/rank", "127.0.0.1:29500", "torch/utils/data/dataloader.py(12): next"),
        *("https://huggingface.co/meta-llama/Llama-3.1-8B", "aten::add", "07:54:23", "#!/bin/sh"),
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
    ],
)
def test_what_names_nobody_stays(text):
    assert redactor(host="nid001").text(text) == text


def test_versions_of_four_numbers_are_no_addresses():
    machine = {"packages": {"cublas": "12.8.4.1"}, "told": "at 12.8.4.1"}
    assert redactor().value(machine) == {"packages": {"cublas": "12.8.4.1"}, "told": "at ip1"}


def test_libraries_keep_their_paths_and_folders_stay_apart():
    redacting = redactor()
    library = "/home/eve/venv/lib/python3.11/site-packages/torch/nn/linear.py"
    assert redacting.text(library) == "/path1/lib/python3.11/site-packages/torch/nn/linear.py"
    first, second, third = (
        redacting.text(path) for path in ("/a/b/x.json", "/a/b/y.json", "/a/c/x.json")
    )
    assert first.rpartition("/")[0] == second.rpartition("/")[0] != third.rpartition("/")[0]
    assert first.rpartition("/")[2] == third.rpartition("/")[2] != second.rpartition("/")[2]


def test_a_name_that_is_left_is_found_across_pieces():
    known = Known()
    known.add("host", "nid004217")
    with pytest.raises(NotRedacted, match="still in a file"):
        check_redacted("a file", [b"x" * 600 + b" nid00", b"4217 y"], known)
    with pytest.raises(NotRedacted, match="still in a file"):
        check_redacted("a file", [b"ends with nid004217"], known)
    check_redacted("a file", [b"nid004217", b"0 ", b"a", b"nid004217", b"x"], known)


def test_files_that_nobody_can_look_into_stay_at_home(tmp_path):
    (tmp_path / "profile.sqlite").write_bytes(b"SQLite format 3")
    assert redact_file(tmp_path / "profile.sqlite", "profile.sqlite", tmp_path / "out", redactor())


@pytest.mark.parametrize("name", ["rank0_trace.json.gz", "rank0_trace.json.zst", "x.json"])
def test_a_file_stays_as_compressed_as_its_name_says(name, tmp_path):
    plain, out = tmp_path / "plain", tmp_path / name
    plain.write_text('{"traceEvents":[{"ph":"X","name":"/data/eve/x"}]}')
    assert redact_file(plain, name, out, redactor()) is None
    content = out.read_bytes()
    if name.endswith("gz"):
        content = gzip.decompress(content)
    elif name.endswith("zst"):
        content = unpacked(content)
    assert json.loads(content)["traceEvents"][0]["name"] == "/path1/file1"


LARGE = """
import resource, sys
from pathlib import Path
from search.transfer.redact import Known, Redactor, rewrite_trace
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open(sys.argv[2], "wb") as out:
    rewrite_trace(Path(sys.argv[1]), out, Redactor(Known()))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_large_trace_takes_little_memory(tmp_path):
    event = json.dumps({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2,
                        "args": {"pad": "x" * 4000}})  # fmt: skip
    trace = tmp_path / "trace.json"
    trace.write_text(f'{{"schemaVersion":1,"traceEvents":[{",".join([event] * 8_000)}]}}')
    root = Path(__file__).parents[3]
    grown = subprocess.run(
        [sys.executable, "-c", LARGE, trace, tmp_path / "out"],
        capture_output=True, text=True, check=True, cwd=root,
    )  # fmt: skip
    assert trace.stat().st_size > 30 << 20
    assert int(grown.stdout) * 1024 < 24 << 20


def test_options_of_redaction_need_it(export):
    ended, _ = export("jsonl", "--name", "me")
    assert (ended.code, "--redact" in ended.err) == (2, True)
