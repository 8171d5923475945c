"""Log lines in logfmt or JSON on standard error, as Prometheus writes them. Set up once by `app`.

Modules log with the standard `logging`; a repeating failure is logged once per change of state by whoever sees it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_NAMES = {number: name for name, number in _LEVELS.items()} | {logging.CRITICAL: "error"}


class _Formatter(logging.Formatter):
    def __init__(self, style: str) -> None:
        super().__init__()
        self._json = style == "json"

    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, timezone.utc)
        pairs = {
            "ts": stamp.strftime("%Y-%m-%dT%H:%M:%S.") + f"{stamp.microsecond // 1000:03d}Z",
            "level": _NAMES.get(record.levelno, "info"),
            "component": record.name.removeprefix("exporter."),
            "msg": record.getMessage(),
        }
        if record.exc_info:
            pairs["error"] = self.formatException(record.exc_info)
        if self._json:
            return json.dumps(pairs, ensure_ascii=False)
        return " ".join(f"{key}={_quoted(value)}" for key, value in pairs.items())


def _quoted(value: str) -> str:
    """A logfmt value: quoted where it holds anything that would end it."""
    plain = value and not any(c in value for c in ' "=\n\t')
    return value if plain else json.dumps(value, ensure_ascii=False)


def setup(level: str, style: str) -> None:
    """Send the project's log lines to standard error; replaces what was set up before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(style))
    logger = logging.getLogger("exporter")
    logger.handlers[:] = [handler]
    logger.setLevel(_LEVELS[level])
    logger.propagate = False
    # The web server's own complaints (malformed requests and the like) concern only its developers.
    for name in ("tornado.access", "tornado.application", "tornado.general"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
