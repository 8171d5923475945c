"""Settings: a flag beats the file, the file beats the default, and every complaint says what would be right."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.config import Config, ConfigError, load, load_yaml, parse

FIELDS = {field.name for field in fields(Config)}


def write(folder: Path, text: str) -> str:
    path = folder / "overlap.yml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_no_file_and_no_flags_give_the_defaults() -> None:
    assert load(None, {}) == Config()


def test_a_flag_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    text = "web:\n  listen_address: ':9000'\nlog: {level: debug}\nfilters:\n  rdma:\n    exclude: ['mlx5_8*']\n"
    path = write(tmp_path, text)
    config = load(path, {"web_listen_address": ":9001", "log_format": None})
    assert (config.web_listen_address, config.log_level, config.filters_rdma_exclude) == (":9001", "debug", ("mlx5_8*",))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("web: {listen_adress: ':1'}", "web.listen_adress: unknown key: did you mean web.listen_address?"),
        ("smapling: {gpu_hertz: 1}", "smapling: unknown key: did you mean sampling?"),
        ("sampling: {gpu_hertz: fast}", "sampling.gpu_hertz: 'fast' is not allowed: expected a number from 1 to 50"),
        ("sampling: {gpu_hertz: true}", "sampling.gpu_hertz: True is not allowed: expected a number from 1 to 50"),
        ("sampling: {network_hertz: 1000}", "sampling.network_hertz: 1000 is not allowed: expected a number from 1 to"),
        ("sampling: 10", "sampling: 10 is not a section: allowed is a mapping of keys"),
        ("analysis: {windows_seconds: [60, 15]}", "analysis.windows_seconds: [60, 15] is not allowed: expected one to five"),
        ("analysis: {verdict_window_seconds: 30}", "analysis.verdict_window_seconds: 30 is not allowed: expected one of"),
        ("log: {level: loud}", "log.level: 'loud' is not allowed: expected one of debug, info, warn, error"),
        ("require: [gpu, disk]", "require: ['gpu', 'disk'] is not allowed: expected a list out of gpu, rdma"),
        ("filters: {nic: {include: eth0}}", "filters.nic.include: 'eth0' is not allowed: expected a list of shell patterns"),
        ("[1, 2]", "[1, 2] is not a mapping of settings"),
        ("log: {level: info}\nlog: {level: warn}", "line 2, column 1: not valid YAML: found the key 'log' twice"),
        ("log: [", "not valid YAML"),
        ("log: \x07", "not valid YAML"),
    ],
)
def test_a_complaint_names_file_key_value_and_what_is_allowed(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load(path, {})
    assert str(error.value).startswith(path)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, "log: {level: loud, colour: red}\nsampling: {gpu_hertz: 0}\n"), {})
    assert len(error.value.problems) == 3


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yml: cannot be read: No such file"):
        load(str(tmp_path / "none.yml"), {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(str(tmp_path), {})


@given(st.binary(max_size=200))
def test_no_bytes_make_the_loader_fail_otherwise_than_by_its_own_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.yml"
    path.write_bytes(data)
    with suppress(ConfigError):
        assert set(parse(load_yaml(path), str(path))) <= FIELDS


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)))
def test_no_value_makes_the_parser_fail_otherwise_than_by_its_own_error(value: object) -> None:
    with suppress(ConfigError):
        assert set(parse(value, "x.yml")) <= FIELDS
