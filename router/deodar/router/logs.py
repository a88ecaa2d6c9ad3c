"""Logs go to stderr: one JSON object a line, or lines for people on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs() -> None:
    last: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if sys.stderr.isatty():
        last = structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
