"""Logs: one event a line, JSON for machines or console for people, the libraries' own logs in the same form.

Invariant: logging never raises and never writes half an event on purpose: text that does not encode is escaped, a
stream that is closed or full loses the line and not the service. Every event names service, worker and run, and the
trace it belongs to where there is one.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

import structlog
from opentelemetry.trace import get_current_span
from structlog.typing import EventDict, Processor, WrappedLogger

from shared.settings import TelemetrySettings
from shared.telemetry.text import one_line, plain, printable

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_FIRST = ("timestamp", "level", "event", "service", "worker_id", "run_id")

_NOISY = ("kafka.net.selector", "kafka.coordinator.assignors")
"""Loggers that warn of what is no fault: a callback that took 100 ms on a busy machine, and, at every rebalance,
topics whose partitions a client has yet to learn. Heard from `error` up, or with `log_level = "debug"`."""


def configure_logging(
    telemetry: TelemetrySettings, *, service: str, worker_id: str, run_id: str, stream: TextIO | None = None
) -> None:
    """Route structlog and the standard library's logging of this process to `stream` (default: stderr).

    Libraries are heard from `warning` up; our own events from `telemetry.log_level` up. May be called again: the
    last call wins.
    """
    level = _LEVELS[telemetry.log_level]
    stream = sys.stderr if stream is None else stream
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _identity(service, worker_id, run_id),
        _add_trace,
        structlog.processors.format_exc_info,
        _plain,
    ]
    render = _json_line if telemetry.log_format == "json" else _console_line(stream)
    lines = _Lines(stream)
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=False,
    )
    handler = _LibraryHandler(lines, shared, render)
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _LibraryHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(level, logging.WARNING))
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.NOTSET if level < logging.INFO else logging.ERROR)
    logging.captureWarnings(True)


class _Lines:
    """What structlog writes to: a line at a time, in one write, so that lines of several threads do not mix."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        try:
            self._stream.write(_encodable(line, self._stream) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # The stream is closed or its disk is full. There is nowhere left to say so.
            return

    debug = info = warning = error = critical = exception = log = msg


class _LibraryHandler(logging.Handler):
    """Records of the standard library's logging, in the form of ours."""

    def __init__(
        self,
        lines: _Lines,
        processors: list[Processor],
        render: Callable[[WrappedLogger, str, EventDict], str],
    ) -> None:
        super().__init__()
        self._lines = lines
        self._processors = processors
        self._render = render

    def emit(self, record: logging.LogRecord) -> None:
        event: Any = {"event": _message_of(record), "logger": record.name}
        if record.exc_info and record.exc_info[0] is not None:
            event["exc_info"] = record.exc_info
        method = record.levelname.lower()
        for processor in self._processors:
            event = processor(None, method, event)
        self._lines.msg(self._render(None, method, event))


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - a library's broken format string must not end a service
        return f"{record.msg!s} ({type(error).__name__} while formatting its arguments)"


def _identity(service: str, worker_id: str, run_id: str) -> Processor:
    def bind(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        event.setdefault("worker_id", worker_id)
        event.setdefault("run_id", run_id)
        return event

    return bind


def _add_trace(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    context = get_current_span().get_span_context()
    if context.is_valid:
        event.setdefault("trace_id", f"{context.trace_id:032x}")
    return event


def _plain(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {printable(key): plain(value) for key, value in event.items()}


def _json_line(_: WrappedLogger, __: str, event: EventDict) -> str:
    ordered = {name: event.pop(name) for name in _FIRST if name in event}
    return json.dumps(ordered | dict(event), ensure_ascii=False, separators=(",", ":"))


def _console_line(stream: TextIO) -> Callable[[WrappedLogger, str, EventDict], str]:
    """`12:00:00 warning  rollout-0  event  key=value`; colours only where a person looks."""
    colours = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m", "debug": "\x1b[2m"}
    coloured = _is_terminal(stream)

    def render(_: WrappedLogger, __: str, event: EventDict) -> str:
        clock = str(event.pop("timestamp", ""))[11:19]
        level, worker = str(event.pop("level", "info")), str(event.pop("worker_id", ""))
        message = one_line(str(event.pop("event", "")))
        trail = event.pop("exception", "")
        for name in ("service", "run_id", "trace_id"):
            event.pop(name, None)
        pairs = " ".join(f"{key}={_value(value)}" for key, value in event.items())
        line = f"{clock} {level:<8} {worker:<12} {message}" + (f"  {pairs}" if pairs else "")
        if coloured and level in colours:
            line = f"{colours[level]}{line}\x1b[0m"
        return f"{line}\n{trail}" if trail else line

    return render


def _value(value: object) -> str:
    if isinstance(value, str):
        text = one_line(value)
        return json.dumps(text, ensure_ascii=False) if text == "" or " " in text or '"' in text else text
    if isinstance(value, dict | list):
        return one_line(json.dumps(value, ensure_ascii=False))
    return str(value)


def _encodable(line: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False
