"""Stores by URL, in this process: the same results as from a path, by range requests only, and one-sentence errors."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, opened, run_cli
from support.s3 import KEY, SECRET, endpoint, faulty, locked
from support.stores import Store, message

import mqstore
from mqstore.errors import CannotOpenError, MqstoreError, TargetError, UnsupportedError, UsageError
from mqstore.files.location import Url
from mqstore.files.remote import RemoteDirectory, matching
from mqstore.jobs.export import export
from mqstore.rocketmq.lookup.pruning import prune
from mqstore.rocketmq.verify.verification import verify
from mqstore.table.columns import Selection

SMALL = 64 << 10  # bytes of a window; files of the golden stores are not much larger than that
DEFAULTS = "4.9.3/l-default-sizes"  # index files of 420 MB, nearly all of it unwritten: all of it would be requested from the endpoint
SOME = [case for case in CASES if case.id != DEFAULTS]


@pytest.mark.versions
@pytest.mark.parametrize("case", SOME, ids=case_id)
def test_rows_and_findings_are_those_of_the_path(case: GoldenCase) -> None:
    url = endpoint().uploaded(opened(case), window=SMALL)
    here, there = mqstore.open(opened(case), config=case.config), mqstore.open(url, config=case.config)
    assert there.to_arrow().equals(here.to_arrow())
    report, wanted = verify(there, threads=2).as_dict(), verify(here, threads=2).as_dict()
    assert report.pop("store") == str(url)
    wanted.pop("store")
    assert report == wanted
    for asked in endpoint().fetched(url):
        assert asked.length is not None
        assert asked.length <= SMALL


def test_requests_that_are_throttled_reset_or_cut_off_are_sent_again() -> None:
    case = case_named("5.3.3/o-batch-queue")
    url = endpoint().uploaded(opened(case))
    wanted = mqstore.open(opened(case), config=case.config).to_arrow()
    with faulty(throttled=0.1, reset=0.1, cut=0.1) as met:
        assert mqstore.open(url, config=case.config).to_arrow().equals(wanted)
    assert sum(met.values()) > 3, met


def test_an_endpoint_that_refuses_every_request_gives_a_one_sentence_error() -> None:
    url = endpoint().uploaded(opened(case_named("5.3.3/o-batch-queue")))
    with faulty(throttled=1.0), pytest.raises(CannotOpenError, match=r"SlowDown|reduce your request rate|Slow Down|503") as found:
        mqstore.open(url).to_arrow()
    assert "\n" not in str(found.value)
    assert SECRET not in str(found.value)


def _told(printed: str, store: str) -> str:
    """Return the output without the store's name, and without the disk space and advice, which only a local store has in full."""
    without_advice = re.sub(r'^  "(starts|next|why)": .*$', "", printed.replace(store, "STORE"), flags=re.MULTILINE)
    return re.sub(r'"(stored_bytes|seconds|changed_at)": [^,\n]+', "", without_advice)


@pytest.mark.parametrize(
    "name", ["4.9.3/m-damaged/16-everything", "4.9.3/b2-kill9-live", "4.9.3/c-index-collisions", "5.3.3/o-batch-queue"]
)
def test_commands_print_the_same(name: str) -> None:
    case = case_named(name)
    url = endpoint().uploaded(opened(case), window=SMALL)
    reached = [word for pair in url.options for word in ("--fs-option", "=".join(pair))]
    store = mqstore.open(opened(case), config=case.config)
    keyed = next(row for row in store.to_arrow(["topic", "keys", "queue_id"]).to_pylist() if row["keys"])
    topic, key, queue = keyed["topic"], keyed["keys"][0], keyed["queue_id"]
    for verb, *rest in (
        ("inspect", "-o", "json"),
        ("messages", "-o", "jsonl", "--limit", "50"),
        ("topics", "-o", "json"),
        ("groups", "-o", "json"),
        ("queue", topic, queue, "-o", "jsonl"),
        ("query", "-t", topic, "-k", key, "--explain", "-o", "json"),
        ("usage", "-o", "json"),
        ("verify", "-o", "json"),
    ):
        here, there = (run_cli(verb, place, *rest, "--config", case.config, *more) for place, more in ((opened(case), ()), (url, reached)))
        assert there.status == here.status, there.stderr
        assert _told(there.stdout, str(url)) == _told(here.stdout, str(opened(case))), verb
        assert SECRET not in there.stdout + there.stderr


@pytest.mark.long
def test_a_large_log_is_read_in_windows_and_small_memory(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=150 << 20)
    for number in range(2100):
        store.put(message("orders", bytes([number % 251]) * 65_000, keys=f"k{number}"))
    url = endpoint().uploaded(store.write(), window=2 << 20)
    script = """
import sys, mqstore
from mqstore.files.location import Url
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
store = mqstore.open(Url(sys.argv[1], dict(pair.split("=", 1) for pair in sys.argv[2:])))
rows = next(store.to_batches(["topic"])).num_rows and 1
before = peak()
rows += sum(batch.num_rows for batch in store.to_batches())
print(rows, peak() - before)
"""
    options = [f"{name}={value}" for name, value in url.options]
    done = subprocess.run([sys.executable, "-c", script, str(url), *options], capture_output=True, text=True, check=True, timeout=300)
    rows, kilobytes = map(int, done.stdout.split())
    assert rows == 1 + 2100
    assert kilobytes < 132 << 10  # a batch of 16 MB of records and its copies; the log is 136 MB
    asked = endpoint().fetched(url, "commitlog/")
    assert max(each.length or 1 << 40 for each in asked) <= 2 << 20
    assert sum(each.length or 0 for each in asked) < 2 * (150 << 20)


@pytest.mark.real_sizes
def test_no_record_costs_a_request(tmp_path: Path) -> None:
    case = case_named("4.9.3/b2-kill9-live")
    url = endpoint().uploaded(opened(case))
    assert mqstore.open(url, config=case.config).to_arrow().num_rows == 3350
    assert len(endpoint().fetched(url, "commitlog/")) < 60


def test_selections_by_queue_and_key_are_narrowed_as_from_a_path() -> None:
    case = case_named("4.9.3/c-index-collisions")
    url = endpoint().uploaded(opened(case), window=SMALL)
    here, there = mqstore.open(opened(case), config=case.config), mqstore.open(url, config=case.config)
    row = next(row for row in here.to_arrow(["topic", "keys", "queue_id"]).to_pylist() if row["keys"])
    for selection in (
        Selection(keys=frozenset({row["keys"][0]})),
        Selection(topics=frozenset({row["topic"]}), queue_ids=frozenset({row["queue_id"]}), from_queue_offset=3, to_queue_offset=40),
    ):
        assert prune(there, selection) == prune(here, selection)
        assert there.to_arrow(selection=selection).equals(here.to_arrow(selection=selection))


@pytest.mark.parametrize("size", [4096, 5000, 16 << 20])
def test_any_window_gives_the_same_rows(size: int) -> None:
    case = case_named("5.3.3/i-v2-codecs-crc")
    url = endpoint().uploaded(opened(case), window=size)
    assert mqstore.open(url, config=case.config).to_arrow().equals(mqstore.open(opened(case), config=case.config).to_arrow())


# missing and changed files


def test_an_object_that_changes_while_it_is_read_is_an_error_not_other_bytes() -> None:
    case = case_named("4.9.3/a-clean-small")
    url = endpoint().uploaded(opened(case), window=4096)
    store = mqstore.open(url, config=case.config)
    batches = store.to_batches()
    next(batches)
    name = store.log.files[store.log.last_written()].name
    endpoint().put(url, f"commitlog/{name}", (opened(case) / "commitlog" / name).read_bytes()[::-1])
    with pytest.raises(CannotOpenError, match="the file changed while it was read; run the job again"):
        list(batches)


def test_an_identity_that_was_asked_for_holds_from_then_on() -> None:
    case = case_named("4.9.3/a-clean-small")
    url = endpoint().uploaded(opened(case))
    directory = RemoteDirectory(url)
    name = next((opened(case) / "commitlog").iterdir()).name
    relative = f"commitlog/{name}"
    (planned,) = directory.identities([relative])
    assert directory.identities([relative]) == RemoteDirectory(url).identities([relative]) == [planned]
    body = (opened(case) / relative).read_bytes()
    endpoint().put(url, relative, bytes([body[0] ^ 1]) + body[1:])
    with pytest.raises(CannotOpenError, match="the file changed since the store was listed"):
        directory.map(relative)
    assert RemoteDirectory(url).identities([relative]) != [planned]
    endpoint().delete(url, relative)
    with pytest.raises(CannotOpenError, match="no longer exists: it was removed after the store was listed"):
        directory.map(relative)


def test_credentials_travel_but_are_never_printed() -> None:
    url = Url("s3://bucket/store", {"key": KEY, "secret": SECRET})
    assert pickle.loads(pickle.dumps(url)) == url
    assert dict(pickle.loads(pickle.dumps(url)).options)["secret"] == SECRET
    assert SECRET not in f"{url} {url!r} {[url / 'x']} {mqstore.files.location.as_location(url)!r}"


@pytest.mark.parametrize(
    ("text", "options", "error", "sentence"),
    [
        ("s3://no-such-bucket/store", {}, CannotOpenError, "there is no bucket of that name; check the bucket and the endpoint"),
        ("s3://{bucket}/elsewhere", {}, CannotOpenError, "does not exist; give the URL of the directory that holds commitlog/"),
        ("s3://{bucket}/store/checkpoint", {}, CannotOpenError, "is a file, not a directory"),
        ("s3://{bucket}/store", {"endpoint_url": "http://127.0.0.1:9", "timeout": "2"}, CannotOpenError, "check the endpoint"),
        ("s3://{bucket}/store", {"bucket": "x"}, UsageError, "there is no option 'bucket' for s3: URLs; the options are key, secret"),
        ("s3://{bucket}/store", {"window": "12"}, UsageError, "option window is '12': give a number of bytes"),
        ("s3://user:password@bucket/store", {}, UsageError, "a URL must not contain a password"),
        ("nosuch://host/store", {}, UnsupportedError, "no file system is known for nosuch: URLs"),
        ("hdfs://127.0.0.1:9/store", {}, CannotOpenError, "needs Hadoop's native client: set HADOOP_HOME"),
    ],
)
def test_what_cannot_be_opened_gives_a_one_sentence_error(
    text: str, options: dict[str, str], error: type[MqstoreError], sentence: str
) -> None:
    url = endpoint().uploaded(opened(case_named("4.9.3/a-clean-small")))
    given = {} if text.startswith(("nosuch", "hdfs")) else {**dict(url.options), **options}
    with pytest.raises(error, match=sentence) as told:
        mqstore.open(text.format(bucket=url.url.split("/")[2]), fs_options=given)
    assert "\n" not in str(told.value)
    assert SECRET not in str(told.value)


def test_a_wrong_key_gives_a_one_sentence_error() -> None:
    url = endpoint().uploaded(opened(case_named("4.9.3/a-clean-small")))
    with locked(), pytest.raises(CannotOpenError, match="access denied; give a key and secret"):
        mqstore.open(url)


def test_without_fsspec_other_urls_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UnsupportedError, match=r"need fsspec: `pip install mqstore\[url\]`"):
        mqstore.open("local:///backup/store")


@pytest.mark.versions
def test_a_file_system_of_fsspec_gives_the_same(tmp_path: Path) -> None:
    case = case_named("5.3.3/h-kill9")
    shutil.copytree(opened(case), tmp_path / "store", copy_function=shutil.copyfile)
    there = mqstore.open(f"local://{tmp_path}/store", config=case.config, fs_options={"window": str(SMALL)})
    assert there.to_arrow().equals(mqstore.open(opened(case), config=case.config).to_arrow())
    assert verify(there).damage == verify(mqstore.open(opened(case), config=case.config)).damage
    assert mqstore.open(f"file://{opened(case)}").path == opened(case)


def test_a_pattern_finds_stores() -> None:
    url = endpoint().uploaded(opened(case_named("4.9.3/a-clean-small")))
    for name in ("b", "a"):
        endpoint().client.put_object(Bucket=url.url.split("/")[2], Key=f"broker-{name}/store/commitlog/x", Body=b"")
    above = url.url.rpartition("/")[0]
    assert [str(each) for each in matching(Url(f"{above}/broker-*/store", url.options))] == [f"{above}/broker-{n}/store" for n in "ab"]


def test_operations_that_need_local_files_say_so(tmp_path: Path) -> None:
    url = endpoint().uploaded(opened(case_named("4.9.3/a-clean-small")))
    reached = [word for pair in url.options for word in ("--fs-option", "=".join(pair))]
    for words, sentence in (
        (("rebuild", url, "--to", tmp_path / "new", *reached), "works on a store of a local or shared file system; copy"),
        (("follow", url, "--to", tmp_path / "new", *reached), "works on a store of a local or shared file system; copy"),
        (("messages", url, "--view", "recovered", *reached), "copy the store to a local disk"),
    ):
        outcome = run_cli(*words)
        assert outcome.status == 2
        assert sentence in outcome.stderr
        assert len(outcome.stderr.strip().splitlines()) == 1
    with pytest.raises(TargetError, match="results are written to a directory of a local or shared file system"):
        export(opened(case_named("4.9.3/a-clean-small")), "s3://bucket/out", threads=1)
