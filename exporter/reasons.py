"""Why a GPU has no verdict, or a lesser one: every sentence the analysis can say of it, in English and Chinese.

`verdict` and `resolution` say them in English, as `analyze --json` and the API carry them; report, terminal and page show them
in the reader's language. Each sentence is one row, so that none can be said that has no translation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from exporter.advice import Text

SHARED_NODE = "shared_node"  # said as the name of its finding

SENTENCES: Mapping[str, Text] = {
    "no_power": Text("no power readings in this window", "该窗口内没有功耗读数"),
    "little_power": Text("power was read for {read_s} s of {window_s} s only", "{window_s} 秒中只读到 {read_s} 秒的功耗"),
    "no_job": Text("no job is running on this GPU", "该 GPU 上没有作业"),
    SHARED_NODE: Text("several jobs share the network ports of this GPU", "多个作业共用该 GPU 的网络端口"),
    "no_source": Text("no traffic source is paired with this GPU", "没有与该 GPU 配对的流量来源"),
    "few_bytes": Text("too few byte readings in this window", "该窗口内的字节读数太少"),
    "silent": Text("no byte readings from {devices}", "{devices} 没有字节读数"),
    "no_communication": Text("no communication in this window", "该窗口内没有通信"),
    "smoothed": Text(
        "power smoothing is on: this GPU keeps its power up while it communicates",
        "功耗平滑已开启：该 GPU 在通信时也保持高功耗",
    ),
    "finer": Text(
        "communication is finer than the sensors resolve: between {low} and {high} % of the time may be exposed",
        "通信比传感器能分辨的更细：暴露时间可能在 {low} % 到 {high} % 之间",
    ),
    "slow_power": Text(
        "power sensor averages over {window_s} s: rhythms below {shortest_s} s cannot be seen",
        "功耗传感器按 {window_s} 秒取平均：快于 {shortest_s} 秒的节奏看不到",
    ),
    "slow_bytes": Text(
        "byte counter of {device} takes a new value each {refresh_s} s: rhythms below {shortest_s} s cannot be seen",
        "{device} 的字节计数器每 {refresh_s} 秒才更新一次：快于 {shortest_s} 秒的节奏看不到",
    ),
    "flat_and_low": Text(
        "power and traffic are flat at {watts} W, below half of the limit of {limit} W: may be a fast alternation",
        "功耗与流量平稳在 {watts} W，低于上限 {limit} W 的一半：可能是快速交替",
    ),
    "without": Text("judged without {devices}, which gives no byte readings", "判断未计入 {devices}：它没有字节读数"),
}
_FIELD = re.compile(r"\\\{(\w+)\\\}|\{(\w+)\}")


def because(key: str, **given: object) -> str:
    """A sentence of the table with its numbers and names, in English.

    >>> because("silent", devices="mlx5_0/1")
    'no byte readings from mlx5_0/1'
    """
    return SENTENCES[key].en.format(**given)


def pattern(key: str) -> str:
    """A regular expression for what is said, with a group for each number and name; good in Python and JavaScript.

    >>> pattern("silent"), pattern("shared_node")
    ('^no byte readings from (.+)$', '^shared_node$')
    """
    if key == SHARED_NODE:
        return f"^{key}$"
    return "^" + _FIELD.sub("(.+)", re.escape(SENTENCES[key].en).replace(r"\ ", " ")) + "$"


def fields(key: str) -> list[str]:
    """What the groups of its pattern hold, in order.

    >>> fields("finer")
    ['low', 'high']
    """
    return [a or b for a, b in _FIELD.findall(SENTENCES[key].en)]


def in_both(reason: str) -> Text:
    """What the analysis has said, as sentences in both languages; as it is where it is none of the table.

    >>> in_both("no byte readings from mlx5_0/1").zh
    'mlx5_0/1 没有字节读数'
    """
    for key, text in SENTENCES.items():
        if found := re.fullmatch(pattern(key), reason):
            given = dict(zip(fields(key), found.groups(), strict=True))
            return Text(text.en.format(**given), text.zh.format(**given))
    return Text(reason, reason)


def replacement(key: str, language: str) -> str:
    """A sentence with $1, $2 ... in place of what the groups of its pattern hold, as JavaScript replaces.

    >>> replacement("silent", "zh")
    '$1 没有字节读数'
    """
    places = {name: f"${k}" for k, name in enumerate(fields(key), 1)}
    return SENTENCES[key].of(language).format(**places)
