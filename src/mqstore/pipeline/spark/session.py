"""Spark sessions that start fast, print nothing, and report failures in one sentence.

`session()` returns a session with the settings below; `running()` is a block with one, stopped at the end only if it was started there;
`starting()` is a block in which one starts.
With a local master everything stays on 127.0.0.1, needs no configuration, and writes nothing to the working directory. On a cluster the
package is shipped to the executors, and Spark's own configuration (spark-defaults.conf, PYSPARK_PYTHON) applies.

    setting                                      value            why
    PYSPARK_PYTHON                               this interpreter tasks must find this package
    SPARK_HOME                                   links to it      Python processes import pyspark compiled; local only
    spark.sql.python.filterPushdown.enabled      true             filters reach our readers; off by default
    spark.python.unix.domain.socket.enabled      true             a task starts 20 ms sooner than over TCP (delayed acknowledgements);
                                                                  not on YARN, where the path of a socket would be too long
    spark.sql.session.timeZone                   UTC              times are those of the store
    spark.ui.enabled, showConsoleProgress        false            faster start, no port, no progress bars but ours
    spark.driver.host, bindAddress               127.0.0.1        on one machine only: independent of host names
    spark.python.task.killTimeout                100ms            an interrupt waits until cancelled workers are dead
    spark.ui.liveUpdate.period                   0                the count of running tasks is never stale
    spark.sql.shuffle.partitions                 2 x cores        local only: 200 by default
    spark.driver.memory                          2g               local only
    spark.sql.catalogImplementation              in-memory        local only: no metastore in the working directory
    spark.python.daemon.module                   ours             local only: workers have the package as soon as they are forked
    spark.sql.catalog.mq, SPARK_DIST_CLASSPATH   catalog.jar      stores as namespaces in SQL, where the jar was built (setup.py); the
                                                                  driver alone needs it, and spark.jars stays as it is configured
    JVM                                          serial collector, first compiler only: tasks are Python, startup time matters;
                                                 the heap begins with 64 MiB;
                                                 classes from an archive in the user's cache (mqstore.pipeline.spark.java)

The JVM's output goes to an unnamed file, from which the cause is quoted if the JVM does not start.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import signal
import site
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mqstore.errors import MqstoreError, PipelineError, UsageError
from mqstore.pipeline.spark import java as javas
from mqstore.pipeline.spark.connect import SCHEME, active_client, connected, disconnect, is_connect, parallel_tasks
from mqstore.pipeline.spark.failures import error_sentence, innermost_cause, require_pyspark
from mqstore.threads import AT_ONCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# lines a JVM prints around the one that names the cause
_UNINFORMATIVE = (
    "Error: Could not create the Java",
    "Error: A fatal exception",
    "Error occurred during init",
    "at ",
    "WARNING:",
    "Picked up",
)
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
CATALOG_JAR = Path(__file__).with_name("catalog.jar")
CATALOG_CLASS = "mqstore.pipeline.spark.StoreCatalog"
WORKER_DAEMON = "mqstore.pipeline.source.worker_daemon"
STDERR = "MQSTORE_STDERR"  # of the process that started a quiet session on this machine, in the environment of the processes of the session


def session(
    master: str = "local[*]",
    *,
    app_name: str = "mqstore",
    config: Mapping[str, str] | None = None,
    throughput: bool = False,
    quiet: bool = True,
    ship: bool | None = None,
) -> SparkSession:
    """Return the active Spark session, or a new one on `master`. Stop it with `stop`, or use it in a `with` block.

    master: as Spark takes it; sc://host:port is a Spark Connect server, whose settings and Python are its own.
    config: further Spark settings; they override ours. throughput: let the JVM compile for long SQL work; starts more slowly.
    quiet: suppress the output of the JVM and of Python workers, except warnings of this package on this machine.
    ship: ship this package to the executors (`pipeline.ship`);
    by default if they are other processes, unless the setting spark.mqstore.ship is false. Raises PipelineError.
    """
    running = active_session()
    if running is not None:
        return running
    require_pyspark()
    if master.startswith(SCHEME):
        if config:
            raise UsageError("the settings of a Spark Connect server are its own; set those of the session with spark.conf.set")
        return connected(master)
    java = javas.find_java()
    settings = _settings(master, app_name, java, throughput, config or {})
    with _environment(_launch_environment(java, master, quiet=quiet)), tempfile.TemporaryFile() as output:
        try:
            started = _start_session(settings, output if quiet else None)
        except MqstoreError:
            raise
        except Exception as error:
            cause = _startup_error(output) or error_sentence(error)
            raise PipelineError(f"Spark did not start on {master} with Java {java.version} ({java.home}): {cause}") from error
    if ship is None:
        ship = not _runs_in_process_tree(master) and started.sparkContext.getConf().get("spark.mqstore.ship", "true") != "false"
    if ship:
        from mqstore.pipeline.spark.shipping import ship as send

        send(started)
    return started


@contextlib.contextmanager
def running(
    master: str = "local[*]", *, spark: SparkSession | None = None, app_name: str = "mqstore", config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session: `spark`, else the active one, else a new one, which is stopped at the end of the block."""
    active = spark if spark is not None else active_session()
    if active is not None:
        yield active
        return
    with _plain_interrupts() as restore:
        started = session(master, app_name=app_name, config=config)
        restore()
        try:
            yield started
        finally:
            stop()


@contextlib.contextmanager
def starting(master: str) -> Iterator[Future[SparkSession]]:
    """Start a session in another thread, and yield its future at once; the session is stopped at the end of the block.

    Only where no session is active. The block ends when the start has ended, except after an interrupt: then the session is stopped as
    soon as it is there, or ends with this process.
    """
    future: Future[SparkSession] = Future()
    interrupted = threading.Event()

    def start() -> None:
        try:
            future.set_result(session(master))
        except BaseException as error:
            future.set_exception(error)
        if interrupted.is_set():
            end()

    def end() -> None:
        """Stop the session, if it was started here: another one that is active now belongs to the caller."""
        if future.done() and future.exception() is None:
            stop()

    thread = threading.Thread(target=start, name="mqstore-session", daemon=True)
    with _plain_interrupts():
        thread.start()
        try:
            yield future
        except KeyboardInterrupt:
            interrupted.set()
            end()
            raise
        except BaseException:
            thread.join()
            end()
            raise
        thread.join()
        end()


def starts_on_this_machine(master: str) -> bool:
    """Return whether a session on `master` would be a new one whose tasks run in child processes of this one."""
    return _runs_in_process_tree(master) and active_session() is None


def tasks_at_once(master: str) -> int:
    """Return the number of tasks that a session on a local master runs at the same time."""
    number = re.match(r"local\[(\d+)", master)
    return int(number[1]) if number else 1 if master == "local" else len(os.sched_getaffinity(0))


@contextlib.contextmanager
def _plain_interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that gives SIGINT back to the handler that Spark has replaced; py4j's log records are dropped in the block.

    Spark's own handler calls the JVM to cancel jobs, in the middle of another call if one is under way, and py4j logs the errors that come
    of it as tracebacks. A session that ends with its block needs no such call: its end cancels the jobs.
    """
    root, own = logging.getLogger(), threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if own else None

    def restore() -> None:
        if before is not None:
            signal.signal(signal.SIGINT, before)

    root.addFilter(_is_not_from_py4j)
    try:
        yield restore
    finally:
        root.removeFilter(_is_not_from_py4j)


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def stop() -> None:
    """End the active session, if any. Never raises: a JVM that has already exited needs no end."""
    active = active_session()
    if active is not None:
        with contextlib.suppress(Exception):
            disconnect(active) if is_connect(active) else active.stop()


def _runs_in_process_tree(master: str) -> bool:
    """Return whether tasks run in child processes of this one, and so import what it imports."""
    return re.match(r"local(\[|$)", master) is not None


def _on_this_machine(master: str) -> bool:
    """Return whether the whole cluster is on this machine, so that its network names do not matter."""
    return master.startswith("local") or re.match(r"spark://(127\.\d+\.\d+\.\d+|localhost)(:|$)", master) is not None


def cores(spark: SparkSession) -> int:
    """Return the number of tasks of this session that run at the same time."""
    if is_connect(spark):
        return parallel_tasks(spark)
    return int(spark.sparkContext.defaultParallelism)


def active_session() -> SparkSession | None:
    """Return the running session of this process, or None. Imports Spark only if it is already imported."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return active_client()
    return SparkSession.getActiveSession() or SparkSession(context)


def _settings(master: str, app_name: str, java: javas.Java, throughput: bool, asked_for: Mapping[str, str]) -> dict[str, str]:
    settings = {
        "spark.master": master,
        "spark.app.name": app_name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.unix.domain.socket.enabled": str(master.startswith(("local", "spark://"))).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.python.task.killTimeout": "100ms",
        "spark.ui.liveUpdate.period": "0",
        "spark.log.level": "ERROR",
    }
    if _on_this_machine(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if master.startswith("local"):
        settings |= {
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": str(2 * tasks_at_once(master)),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.python.daemon.module": WORKER_DAEMON,
            "spark.sql.warehouse.dir": Path(tempfile.gettempdir(), f"mqstore-warehouse-{os.getpid()}").as_uri(),
        }
        if "spark.driver.extraJavaOptions" not in asked_for:
            archived = asked_for.get(javas.ARCHIVE_SETTING, "true") != "false"
            options = _java_options(throughput) + (javas.class_archive_options(java, _spark_home() / "jars") if archived else [])
            settings["spark.driver.extraJavaOptions"] = " ".join(options)
    if CATALOG_JAR.exists():
        settings["spark.sql.catalog.mq"] = CATALOG_CLASS
    return settings | dict(asked_for)


def _spark_home() -> Path:
    """Return the directory of the Spark that is installed with pyspark, as links to its programs and jars without its Python archive.

    Spark's Python processes import pyspark from the archive in python/lib if there is one. Python compiles its modules again in each
    process: 1.1 s of CPU until it connects, and 0.35 s as installed. Spark waits 10 seconds for that of a stream, and a first query
    starts some six. The directory itself is returned where such processes would find no other pyspark, or no cache can be written.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    searched = {*site.getsitepackages(), site.getusersitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    if str(installed.parent) not in searched:
        return installed
    links = javas.cache_directory() / f"spark-{hashlib.sha256(os.fsencode(installed)).hexdigest()[:16]}"
    try:
        links.mkdir(parents=True, exist_ok=True)
        for name in ("bin", "jars"):
            with contextlib.suppress(FileExistsError):
                (links / name).symlink_to(installed / name)
            if (links / name).readlink() != installed / name or links.stat().st_uid != os.geteuid():
                return installed
    except OSError:
        return installed
    return links


def _java_options(throughput: bool) -> list[str]:
    options = [f'"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"', "-XX:-UsePerfData"]
    if not throughput:
        # with the first compiler only, Java reserves 48 MiB for compiled code; a session of some hundred queries fills that, and from
        # then on compiles and discards code all the time. If no size is given, the heap begins with a 64th of the machine's memory,
        # of which Java fills a quarter before it frees anything
        options += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=192m", "-Xms64m"]
    return options


def _launch_environment(java: javas.Java, master: str, *, quiet: bool) -> dict[str, str]:
    """Return the environment of the JVM and, through it, of the Python workers."""
    environment = {"JAVA_HOME": str(javas.launcher_home(java))}
    if CATALOG_JAR.exists():
        environment["SPARK_DIST_CLASSPATH"] = os.pathsep.join(filter(None, (os.environ.get("SPARK_DIST_CLASSPATH"), str(CATALOG_JAR))))
    if not master.startswith("local"):
        return environment | {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    return environment | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(_spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        AT_ONCE: str(tasks_at_once(master)),
        STDERR: f"/proc/{os.getpid()}/fd/2" if quiet else "",
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    }


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@cache
def show_warning(sentence: str) -> None:
    """Show a warning of a Python process of a quiet session where the session was started: once, though each query is planned again."""
    place = os.environ.get(STDERR)
    if place:
        with contextlib.suppress(OSError), open(place, "a", encoding="utf-8") as stderr:
            stderr.write(f"UserWarning: {sentence}\n")


def _start_session(settings: Mapping[str, str], output: IO[bytes] | None) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    if SparkContext._gateway is None:
        before_start = SparkConf(loadDefaults=False)
        before_start.setAll(list(settings.items()))
        pipes = {} if output is None else {"stdout": output, "stderr": output}
        SparkContext._ensure_initialized(gateway=launch_gateway(before_start, pipes))  # type: ignore[no-untyped-call]
    conf = SparkConf()
    conf.setAll(list(settings.items()))
    return SparkSession(SparkContext(conf=conf))


def _startup_error(output: IO[bytes]) -> str:
    """Return the line in which a JVM that did not start gives the reason; empty if it printed none."""
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - 65536))
    text = output.read().decode("utf-8", "replace")
    if cause := innermost_cause(text):
        return cause
    lines = [line.strip() for line in text.splitlines()]
    informative = [line for line in lines if line and not line.startswith(_UNINFORMATIVE)]
    causes = [line for line in informative if re.search(r"[Ee]rror|Exception|[Ii]nvalid|[Cc]ould not|[Cc]annot", line)]
    return (causes or informative or [""])[0]
