"""Spark jobs over stores by URL: a local S3 endpoint with the golden stores, and the requests it received."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from support.golden import GoldenCase, case_named, opened, run_cli
from support.queries import drained
from support.s3 import SECRET, endpoint, faulty
from support.spark_api import needs_streams

import mqstore
from mqstore import pipeline
from mqstore.errors import MqstoreError, PipelineError, UsageError
from mqstore.files.location import Url
from mqstore.jobs.export import export
from mqstore.jobs.lookup import lookup
from mqstore.pipeline.source.options import ReadOptions
from mqstore.pipeline.source.rocketmq import RocketMQReader, read
from mqstore.pipeline.spark.failures import error_sentence as told
from mqstore.rocketmq.verify.verification import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark_in_all

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "spark.md"
SMALL = 64 << 10
NAMES = ["4.9.3/b3-kill9-torn", "4.9.3/m-damaged/16-everything", "5.3.3/o-batch-queue"]


def options_of(url: Url) -> dict[str, str]:
    return {f"fs.{name}": value for name, value in url.options}


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(
        (row.asDict(recursive=True) for row in frame.collect()), key=lambda row: str(sorted(row.items(), key=lambda item: item[0]))
    )


def uploaded(name: str, **more: object) -> tuple[GoldenCase, Url]:
    case = case_named(name)
    return case, endpoint().uploaded(opened(case), **({"window": SMALL} | more))


@pytest.mark.versions
@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_that_of_the_path(name: str, spark: SparkSession) -> None:
    case, url = uploaded(name)
    for table in ("rocketmq", "rocketmq-queue", "rocketmq-index", "rocketmq-offsets", "rocketmq-timer", "rocketmq-findings"):
        here = rows(read(spark, opened(case), format=table, config=case.config))
        there = rows(read(spark, str(url), format=table, config=case.config, **options_of(url)))
        assert there == here, table
    for asked in endpoint().fetched(url):
        assert asked.length is not None
        assert asked.length <= SMALL


def test_conditions_are_narrowed_and_counted_by_the_bytes_requested(spark: SparkSession) -> None:
    case, url = uploaded("4.9.3/c-index-collisions")
    row = next(row for row in mqstore.open(opened(case)).to_arrow(["topic", "queue_id", "keys"]).to_pylist() if row["keys"])
    for where, more in (
        (f"topic = '{row['topic']}' and queue_id = {row['queue_id']} and queue_offset between 5 and 20", {}),
        (None, {"keys": row["keys"][0]}),
        ("physical_offset >= 100000 and physical_offset < 200000", {}),
    ):
        here = rows(read(spark, opened(case), where=where, config=case.config, **more))
        assert here
        assert rows(read(spark, url, where=where, config=case.config, **more)) == here


def test_several_stores_and_a_pattern(spark: SparkSession) -> None:
    case, url = uploaded("4.9.3/a-clean-small")
    bucket = url.url.rpartition("/")[0]
    frame = read(spark, [url, opened(case)], columns=["store", "physical_offset"], config=case.config)
    assert {row["store"] for row in frame.collect()} == {str(url), str(opened(case))}
    many = spark.read.format("rocketmq").options(**options_of(url), columns="store,size", config=str(case.config)).load(f"{bucket}/st*")
    assert {row["store"] for row in many.collect()} == {str(url)}
    s3a = str(url).replace("s3://", "s3a://")
    assert read(spark, s3a, columns=["size"], config=case.config, **options_of(url)).count() == frame.count() // 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("splits", [1, 3, 7])
def test_jobs_give_what_they_give_for_the_path(name: str, splits: int, tmp_path: Path) -> None:
    case, url = uploaded(name, window=256 << 10)
    report = pipeline.verify(url, threads=2, splits=splits, config=case.config).as_dict()
    wanted = verify(mqstore.open(opened(case), config=case.config)).as_dict()
    assert (report.pop("store"), wanted.pop("store")) == (str(url), str(opened(case)))
    assert report == wanted
    for place, to in ((url, tmp_path / "there"), (opened(case), tmp_path / "here")):
        export(place, to, threads=2, splits=splits, config=case.config)
    assert _table(tmp_path / "there").equals(_table(tmp_path / "here"))
    there = pipeline.usage(url, threads=2, splits=splits, prefix=2, config=case.config)
    here = pipeline.usage(opened(case), threads=2, splits=splits, prefix=2, config=case.config)
    assert (there.total, there.groups, there.by_key, there.damage) == (here.total, here.groups, here.by_key, here.damage)


def _table(place: Path) -> Any:
    return pq.read_table(place).sort_by("physical_offset").replace_schema_metadata(None)


@pytest.mark.parametrize("by", ["probe", "sweep", "scan"])
def test_lookups_give_what_they_give_for_the_path(by: str, tmp_path: Path) -> None:
    case, url = uploaded("4.9.3/c-index-collisions")
    known = mqstore.open(opened(case), config=case.config).to_arrow(["topic", "keys"]).to_pylist()
    asked = [(row["topic"], row["keys"][0]) for row in known[::40] if row["keys"]] + [("TopicTest", "nobody-has-this")]
    for place, to in ((url, tmp_path / "there.jsonl"), (opened(case), tmp_path / "here.jsonl")):
        lookup(place, asked, to, by=by, threads=2, splits=3, config=case.config)
    assert (tmp_path / "there.jsonl").read_text() == (tmp_path / "here.jsonl").read_text()


def test_spark_runs_the_jobs_too_and_executors_ask_for_ranges(spark: SparkSession, tmp_path: Path) -> None:
    case, url = uploaded("4.9.3/b2-kill9-live")
    report = pipeline.verify(url, spark=spark, splits=3, config=case.config)
    assert report.damage == verify(mqstore.open(opened(case), config=case.config)).damage
    assert export(url, tmp_path / "out", spark=spark, splits=3, config=case.config).messages == 3350
    assert pipeline.usage(url, spark=spark, splits=3, config=case.config).total.messages == 3350
    keys = [("TopicA", "nobody-has-this")]
    assert lookup(url, keys, tmp_path / "keys", by="scan", spark=spark, config=case.config).keys == 1
    for asked in endpoint().fetched(url):
        assert asked.length is not None
        assert asked.length <= SMALL


def test_jobs_on_spark_send_requests_again_that_are_throttled_reset_or_cut_off(spark: SparkSession, tmp_path: Path) -> None:
    case, url = uploaded("5.3.3/o-batch-queue", window=8 << 20)
    wanted = rows(read(spark, opened(case), config=case.config))
    key = next(row for row in wanted if row["keys"])
    with faulty(throttled=0.05, reset=0.05, cut=0.05) as met:
        assert rows(read(spark, str(url), config=case.config, **options_of(url))) == wanted
        assert export(url, tmp_path / "out", spark=spark, splits=2, config=case.config).messages == len(wanted)
        found = lookup(url, [(key["topic"], key["keys"][0])], tmp_path / "keys", by="scan", spark=spark, config=case.config)
    assert found.hits > 0
    assert sum(met.values()) > 3, met


def test_planning_reads_heads_and_no_file(spark: SparkSession) -> None:
    case, url = uploaded("4.9.3/d-rolled", window=4096)
    before = len(endpoint().fetched(url, "commitlog/"))
    reader = RocketMQReader(ReadOptions.of({"path": str(url), "config": str(case.config), **options_of(url)}), ("topic", "body"))
    parts = reader.partitions()
    asked = endpoint().fetched(url, "commitlog/")[before:]
    whole = sum(path.stat().st_size for path in (opened(case) / "commitlog").iterdir())
    assert parts
    assert sum(each.length or 1 << 40 for each in asked) < whole / 4
    assert SECRET not in repr(parts) + repr(reader.options)


def test_a_plan_names_no_secret(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    case, url = uploaded("4.9.3/a-clean-small")
    frame = read(spark, url, columns=["topic"], config=case.config)
    frame.explain(True)
    frame.collect()
    printed = capfd.readouterr()
    assert "Scan" in printed.out
    assert SECRET not in printed.out + printed.err


def test_the_guide_is_right(spark: SparkSession) -> None:
    section = GUIDE.read_text(encoding="utf-8").partition("\n## Stores by URL\n")[2].partition("\n## ")[0]
    python, command = (block.splitlines() for block in re.findall(r"^```(?:python|sh) s3\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
    case, url = uploaded("4.9.3/a-clean-small")
    there = {"s3://backups/broker-a/store": str(url), "s3://backups/broker-*/store": f"{str(url)[:-2]}*"}
    there |= {"http://storage:9000": endpoint().url, "a-key": "some-key"}
    text = "\n".join(python)
    for written, meant in there.items():
        text, command = text.replace(written, meant), [line.replace(written, meant) for line in command]
    names: dict[str, Any] = {"pipeline": pipeline, "spark": spark}
    exec(text, names)
    assert names["store"].to_arrow(["size"]).num_rows == names["frame"].count() == names["several"].count() == 511
    assert names["report"].ok == verify(mqstore.open(opened(case), config=case.config)).ok
    outcome = run_cli(*shlex.split(command[0])[1:])
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout == run_cli("topics", opened(case)).stdout


# what changes after the plan


def _planned(url: Url, case: GoldenCase, **more: str) -> tuple[RocketMQReader, Any]:
    reader = RocketMQReader(ReadOptions.of({"path": str(url), "config": str(case.config), **options_of(url), **more}), ("topic", "size"))
    return reader, reader.partitions()


def test_a_changed_object_ends_the_read_with_a_sentence() -> None:
    case, url = uploaded("4.9.3/d-rolled")
    reader, parts = _planned(url, case)
    name = mqstore.open(url).log.files[0].relative
    endpoint().put(url, name, (opened(case) / name).read_bytes()[::-1])
    with pytest.raises(PipelineError, match=r"changed or was removed since the store was listed; run the job again; "):
        for part in parts:
            list(reader.read(part))


def test_a_removed_object_is_an_error_or_the_rest_is_read() -> None:
    case, url = uploaded("4.9.3/d-rolled")
    reader, parts = _planned(url, case)
    tolerant, tolerant_parts = _planned(url, case, failOnDataLoss="false")
    name = mqstore.open(url).log.files[-2].relative
    endpoint().delete(url, name)
    with pytest.raises(MqstoreError, match=f"{name} was removed after the read was planned; failOnDataLoss=false reads the rest"):
        for part in parts:
            list(reader.read(part))
    left = sum(batch.num_rows for part in tolerant_parts for batch in tolerant.read(part))
    assert 0 < left < mqstore.open(opened(case)).to_arrow(["size"]).num_rows


def test_what_cannot_be_read_is_one_sentence_on_spark(spark: SparkSession) -> None:
    _, url = uploaded("4.9.3/a-clean-small")
    for path, options, sentence in (
        ("s3://no-such-bucket/store", options_of(url), "there is no bucket of that name"),
        (str(url), options_of(url) | {"fs.nonsense": "1"}, "there is no option 'nonsense' for s3: URLs"),
    ):
        with pytest.raises(PySparkException) as error:
            read(spark, path, columns=["size"], **options).count()
        assert sentence in told(error.value)
        assert SECRET not in str(error.value)


@needs_streams
def test_streams_and_sinks_need_a_file_system_of_this_machine(spark: SparkSession) -> None:
    _, url = uploaded("4.9.3/a-clean-small")
    pipeline.register(spark)
    with pytest.raises(PySparkException, match="a stream works on a store of a local or shared file system"):
        stream = spark.readStream.format("rocketmq").options(**options_of(url)).load(str(url))
        drained(stream.writeStream.format("noop"))
    with pytest.raises(PySparkException, match="results are written to a directory of a local or shared file system"):
        spark.sql("select 't' topic, 'b' body").write.format("rocketmq").mode("append").save(str(url))


def test_the_command_takes_a_url_on_spark_too() -> None:
    case, url = uploaded("4.9.3/m-damaged/16-everything")
    fs_options = [word for pair in url.options for word in ("--fs-option", "=".join(pair))]
    here = run_cli("verify", opened(case), "--config", case.config, "-o", "json")
    there = run_cli("verify", url, "--spark", "--config", case.config, "-o", "json", *fs_options)
    assert there.status == here.status == 1
    assert there.document["damage"] == here.document["damage"]
    with pytest.raises(UsageError):
        mqstore.open(Url(str(url), {"key": "only"}))
