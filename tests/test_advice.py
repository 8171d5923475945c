"""The texts for people: complete in both languages, and naming the same things."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from exporter.advice import ADVICE, Text
from exporter.meanings import FINDINGS, STATES, TRANSPORT_REASONS, TRANSPORTS
from exporter.model import STATES as STATE_NAMES
from exporter.model import TRANSPORTS as TRANSPORT_NAMES
from exporter.rules import RULES
from exporter.transport import REASONS

CHINESE = re.compile(r"[\u4e00-\u9fff]")
# What is typed, not read: variables, parameters, options, files, log lines, and names that have no translation.
TYPED = re.compile(
    r"(?<![\w-])--?[a-z][\w-]*|\b[A-Za-z0-9.]*_[\w.]*\w|(?<![\w/])/[a-z][\w./]+\w|NET/\w+"
    r"|\b(?:DDP|FSDP1|FSDP2|ZeRO-3|HSDP|DSCP|PFC|ECN|XID|GPM|DALI)\b",
    re.ASCII,
)


def texts() -> Iterator[tuple[str, Text]]:
    for key, advice in ADVICE.items():
        yield f"advice {key}", advice.action
        yield f"cost of {key}", advice.cost
    for key, meaning in FINDINGS.items():
        yield f"title of {key}", meaning.title
        yield f"meaning of {key}", meaning.meaning
    for table in (STATES, TRANSPORTS, TRANSPORT_REASONS):
        yield from table.items()


ALL = dict(texts())


def test_every_finding_state_and_transport_has_its_words() -> None:
    assert list(FINDINGS) == [rule.finding for rule in RULES]
    assert list(STATES) == list(STATE_NAMES)
    assert list(TRANSPORTS) == list(TRANSPORT_NAMES)
    assert set(TRANSPORT_REASONS) == set(REASONS)


def test_every_rule_gives_advice_and_no_advice_is_without_a_rule() -> None:
    given = {key for rule in RULES for key in rule.advice}
    assert given == set(ADVICE)
    for rule in RULES:
        assert len(rule.advice) == len(set(rule.advice)) >= 2


@pytest.mark.parametrize("key", ALL)
def test_a_text_is_there_in_both_languages(key: str) -> None:
    text = ALL[key]
    assert CHINESE.search(text.zh)
    assert not CHINESE.search(text.en)
    assert text.en.isascii()
    for words in (text.en, text.zh):
        assert words == " ".join(words.split())


@pytest.mark.parametrize("key", [key for key in ALL if not key.startswith("title")])
def test_a_sentence_ends_as_one(key: str) -> None:
    assert ALL[key].en.endswith(".")
    assert ALL[key].zh.endswith("。")


@pytest.mark.parametrize("key", [key for key in ALL if not key.startswith("title")])
def test_chinese_sentences_have_chinese_punctuation(key: str) -> None:
    # Half-width commas and full stops only inside what is typed (=mlx5_0,mlx5_1), never beside a Chinese character.
    assert not re.search(r"[\u4e00-\u9fff][,;:?!]|[,;:?!](?=[\u4e00-\u9fff])", ALL[key].zh)


@pytest.mark.parametrize("key", [key for key in ALL if key.startswith("advice")])
def test_both_languages_name_the_same_parameters(key: str) -> None:
    assert set(TYPED.findall(ALL[key].en)) == set(TYPED.findall(ALL[key].zh))


def test_titles_are_short_enough_for_a_column() -> None:
    for meaning in FINDINGS.values():
        assert len(meaning.title.en) <= 40
        assert len(meaning.title.zh) <= 20


@pytest.mark.parametrize(("tag", "expected"), [
    ("zh", "等待"), ("zh-Hans-CN", "等待"), ("ZH_cn", "等待"), ("en", "wait"), ("de", "wait"),
])  # fmt: skip
def test_a_language_tag_selects_the_text(tag: str, expected: str) -> None:
    assert Text("wait", "等待").of(tag) == expected


@pytest.mark.parametrize(("finding", "words"), [
    ("tcp_fallback", ("NCCL_DEBUG=INFO", "NET/IB", "NET/Socket", "NET/OFI Selected provider is efa", "NCCL_IB_HCA",
                      "NCCL_SOCKET_IFNAME", "NCCL_IB_GID_INDEX", "/dev/infiniband", "memlock")),
    ("exposed_communication", ("bucket_cap_mb", "no_sync()", "set_modules_to_forward_prefetch", "reshard_after_forward",
                               "stage3_prefetch_bucket_size", "reduce_bucket_size", "overlap_comm")),
    ("input_stall", ("num_workers", "pin_memory", "prefetch_factor", "async_save")),
    ("straggler_wait", ("clocks", "temperature", "XID")),
    ("small_buckets", ("bucket_cap_mb", "_DEFAULT_FIRST_BUCKET_BYTES")),
    ("congestion", ("PFC", "ECN", "NCCL_IB_TC", "NCCL_IB_GID_INDEX")),
    ("power_capped", ("nvidia-smi -pl",)),
])  # fmt: skip
def test_the_advice_names_what_is_to_be_typed(finding: str, words: tuple[str, ...]) -> None:
    (rule,) = (rule for rule in RULES if rule.finding == finding)
    said = " ".join(ADVICE[key].action.en for key in rule.advice).lower()
    assert [word for word in words if word.lower() not in said] == []
