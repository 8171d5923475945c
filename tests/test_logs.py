"""Log lines are logfmt or JSON, one line each, whatever stands in them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from exporter import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    logger = logging.getLogger("exporter")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_a_line_of_logfmt_quotes_what_would_break_it(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("info", "logfmt")
    logging.getLogger("exporter.app").warning('port "%s" is taken\nreally', 9777)
    stamp, _, rest = capsys.readouterr().err.partition(" ")
    assert re.fullmatch(r"ts=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stamp)
    assert rest == 'level=warn component=app msg="port \\"9777\\" is taken\\nreally"\n'


def test_a_line_of_json_is_a_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("debug", "json")
    logging.getLogger("exporter.daemon").debug("停止")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["component"], line["msg"]) == ("debug", "daemon", "停止")


def test_messages_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("error", "logfmt")
    logging.getLogger("exporter").warning("quiet")
    assert capsys.readouterr().err == ""
