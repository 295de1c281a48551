"""Turns an exception of a job's Spark into one line for the user; the stack traces of both languages go to the log."""

from __future__ import annotations

import re
import sys
import traceback
from importlib import import_module
from typing import Final

from broker.cli.table import cell
from broker.pipeline.faults import ERROR, JobFailed, fault_in
from broker.pipeline.spark.log import SparkLog

__all__ = ["reason", "told"]

PYTHON_TRACE: Final = "Traceback (most recent call last):"
LINE_MAX: Final = 600
RAISED: Final = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
CALLING: Final = re.compile(r"^An error occurred while calling [^\n]*\n: ")
CAUSE: Final = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
JAVA_CLASS: Final = re.compile(r"^(?:[a-z]\w*\.)+([A-Z]\w*): ")
CONDITION: Final = re.compile(r"^\[[A-Z][A-Z0-9_.]+\] ?")
STATE: Final = re.compile(r"\s*SQLSTATE: \w{5}(?:; (line \d+ pos \d+);?)?")
RPC: Final = re.compile(r'^<_\w+ of RPC that terminated with:\s+status = StatusCode\.(\w+)\s+details = "([^\n]*)"')
OUR_PACKAGE: Final = "broker."


def told(error: Exception) -> JobFailed:
    """Return the failure for the user, with the exit code; the log has the details of what is no failure already."""
    fault = fault_in(error)
    if fault is not None:
        return JobFailed(_short(str(fault)), fault.code)
    if isinstance(error, JobFailed):
        return error
    log = SparkLog.current or SparkLog.begin()
    text, code = reason(_text(error))
    log.add("".join(traceback.format_exception(error)))
    return JobFailed(f"{text} (details: {log.path})", code)


def reason(text: str) -> tuple[str, int]:
    """Return the line that describes what happened, extracted from Spark's text, and the exit code.

    An exception that a task raised in Python is nearest to the cause; else the last cause that Java names is used.
    """
    if PYTHON_TRACE in text:
        return _of_python(text.rpartition(PYTHON_TRACE)[2])
    if call := RPC.match(text):
        return _short(f"the Spark server does not answer: {call[2]} ({call[1]})"), ERROR
    causes = CAUSE.findall(text)
    line = causes[-1] if causes else _first(CALLING.sub("", text.lstrip()))
    return _short(STATE.sub(_place, CONDITION.sub("", JAVA_CLASS.sub(r"\1: ", line)))), ERROR


def _of_python(trace: str) -> tuple[str, int]:
    for line in trace.splitlines():
        raised = RAISED.match(line)  # lines of code are indented
        if raised is None:
            continue
        name, said = raised[1], raised[2] or ""
        if name.startswith(OUR_PACKAGE):
            return _short(said or name.rpartition(".")[2]), _code(name)
        return _short(f"{name.rpartition('.')[2]}: {said}"), ERROR
    return _short(_first(trace)), ERROR


def _code(name: str) -> int:
    """Return the exit code of our exceptions, which their class attribute `code` holds."""
    module, _, kind = name.rpartition(".")
    try:
        code = getattr(getattr(sys.modules.get(module) or import_module(module), kind), "code", ERROR)
    except (ImportError, AttributeError):
        return ERROR
    return code if isinstance(code, int) else ERROR


def _place(found: re.Match[str]) -> str:
    return f" ({found[1]})" if found[1] else ""


def _text(error: Exception) -> str:
    said = str(error)
    kind = type(error)
    if kind.__module__.partition(".")[0] in {"pyspark", "py4j", "grpc"}:
        return said or kind.__name__
    trace = f"{PYTHON_TRACE}\n{kind.__module__}.{kind.__qualname__}"
    return f"{trace}: {said}" if said else trace


def _first(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _short(line: str) -> str:
    line = cell(line.strip().rstrip(";"))
    return line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]} ..."
