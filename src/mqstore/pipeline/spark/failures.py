"""From a failed Spark job to one sentence: the cause inside a Python traceback inside a Java one inside a Python exception."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from mqstore.errors import PipelineError, UnsupportedError

_LATE_WORKER = "Python worker failed to connect back"


def require_pyspark() -> None:
    """Raise UnsupportedError if pyspark is not installed."""
    if find_spec("pyspark") is None:
        raise UnsupportedError("running on Spark needs pyspark: pip install 'mqstore[spark]'")


@contextlib.contextmanager
def failures(doing: str = "the Spark job") -> Iterator[None]:
    """Translate exceptions of Spark inside the block into a PipelineError of one sentence. Errors of this package pass unchanged."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        with _without_error_log():
            yield
    except (Py4JError, PySparkException) as error:
        message = _package_error(_error_text(error))
        raise PipelineError(message or f"{doing} failed: {error_sentence(error)}") from error
    except (ConnectionError, EOFError) as error:
        raise PipelineError(f"{doing} failed: Spark's Java process has exited; it may have run out of memory") from error


@contextlib.contextmanager
def _without_error_log() -> Iterator[None]:
    """Keep PySpark from printing an error of SQL, with its Java stack in one line of JSON, to standard error before it raises it."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:  # PySpark 3.5 prints nothing
        yield
        return
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def error_sentence(error: BaseException) -> str:
    """Return the one line that names the cause, from a Python traceback inside a Java one inside a Python exception."""
    text = _error_text(error)
    own = _package_error(text)
    if own:
        return own
    python = _raised_in_python(text)
    if python:
        kind, message = python[-1]
        return f"{message} ({kind.rpartition('.')[2]})" if message else kind.rpartition(".")[2]
    if _LATE_WORKER in text:
        return "a Python worker did not start within the 10 seconds that Spark allows: the machine is busy; run it again"
    if "Python worker exited unexpectedly" in text or "Python worker process terminated" in text:
        return "a Python worker of Spark exited unexpectedly: it was killed, or ran out of memory"
    if "OutOfMemoryError" in text:
        return "Spark's Java process ran out of memory; give it more with the setting spark.driver.memory"
    cause = innermost_cause(text)
    if cause:
        return cause
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return re.sub(r"^(?:: )?(?:[\w$]+\.)+[\w$]+: ", "", lines[0]) if lines else type(error).__name__


def innermost_cause(text: str) -> str:
    """Return the last message after `Caused by:` in a Java stack trace; empty if no exception in it has a cause with a message."""
    causes = re.findall(r"^Caused by: (?:(?:\w+\.)+[\w$]+:(?: |$))*(.*)$", text, re.MULTILINE)
    return next((cause.strip() for cause in reversed(causes) if cause.strip()), "")


def is_late_worker(error: BaseException) -> bool:
    """Return whether a job failed because a Python worker took more than 10 seconds to start. Spark has no setting for that."""
    return _LATE_WORKER in _error_text(error)


def _error_text(error: BaseException) -> str:
    java: Any = getattr(error, "java_exception", None)
    if java is not None:
        with contextlib.suppress(Exception):
            return str(java.toString()) + "\n" + str(error)
    return str(error)


def _raised_in_python(text: str) -> list[tuple[str, str]]:
    """Return (class, message) of each Python traceback in a text, in order."""
    errors: list[tuple[str, str]] = []
    before, *parts = text.split("Traceback (most recent call last):\n")
    for part in parts:
        indent = re.search(r"(?:^|\n)([ \t]*)\Z", before)  # Spark indents the traceback of a worker that did not start
        margin = 0 if indent is None else len(indent[1])
        before = part
        for indented in part.splitlines():
            line = indented[margin:]
            if line and not line[0].isspace():
                kind, _, message = line.partition(": ")
                if re.fullmatch(r"[\w.]+", kind):
                    errors.append((kind, message.strip()))
                break
    return errors


def _package_error(text: str) -> str:
    """Return the message of the last error of this package that a task raised; empty if there is none."""
    own = [message for kind, message in _raised_in_python(text) if kind.startswith("mqstore.")]
    return own[-1] if own else ""
