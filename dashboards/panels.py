"""Panels as this project draws them: sizes, units, colours, a description on each.

The dashboards are lists of these. What a panel shows is decided there; here is how it looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import (
    text as text_panel,
)
from grafana_foundation_sdk.models import common as c
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

from dashboards.words import CAUSES, PHASES, RUNBOOKS, STATES

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
RULES_MISSING = "no data: are the recording rules of deploy/prometheus loaded?"
GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "#56a64b", "#f2cc0c", "#e0752d", "#e02f44", "#5794f2", "#7b8087"

AnyPanel = timeseries.Panel | stat.Panel | table.Panel | statetimeline.Panel | bargauge.Panel
P = TypeVar("P", timeseries.Panel, stat.Panel, table.Panel, statetimeline.Panel, bargauge.Panel)
Drawn = TypeVar("Drawn", timeseries.Panel, bargauge.Panel)
Steps = Sequence[tuple[float | None, str]]


@dataclass(frozen=True, slots=True)
class Query:
    """A query and what its series are called."""

    expr: str
    legend: str = ""
    ref: str = "A"
    instant: bool = False
    table: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """How the values of a panel are read: unit, scale, thresholds (worst last or first), words for numbers.

    most: the end of the scale; at_least: where it ends while no value lies higher, so that small ones can be told apart.
    """

    unit: str = "short"
    least: float | None = None
    most: float | None = None
    at_least: float | None = None
    decimals: int | None = None
    steps: Steps = ((None, GREY),)
    mappings: Sequence[ValueMapping] = ()


def titles(texts: Mapping[str, str]) -> Sequence[ValueMapping]:
    """Labels as words that people read."""
    return (ValueMap({key: ValueMappingResult(text=text, index=n) for n, (key, text) in enumerate(texts.items())}),)


SHARE = Look("percentunit", 0, 1, decimals=1)
HEALTH = replace(SHARE, steps=((None, RED), (0.3, YELLOW), (0.8, GREEN)))
EXPOSED = replace(SHARE, steps=((None, GREEN), (0.05, YELLOW), (0.15, ORANGE), (0.3, RED)))
LOST = replace(SHARE, steps=((None, GREEN), (0.1, YELLOW), (0.2, ORANGE)))
# Over time: a twentieth matters, and must not be a line at the bottom.
LOSS = replace(EXPOSED, most=None, at_least=0.2)


def words(texts: Mapping[int, tuple[str, str]]) -> Sequence[ValueMapping]:
    """Numbers as (text, colour)."""
    rows = enumerate(texts.items())
    return (ValueMap({str(key): ValueMappingResult(text=text, color=color, index=n) for n, (key, (text, color)) in rows}),)


STATE = Look(mappings=words({code: (state.replace("_", " "), color) for code, (state, color) in enumerate(STATES)}))
CAUSE = Look(mappings=words({0: ("-", GREY)} | {n: (cause.title, ORANGE) for n, cause in enumerate(CAUSES, 1)}))
FIRST = Look(mappings=words({0: ("-", GREY)} | {n: (cause.first, GREY) for n, cause in enumerate(CAUSES, 1)}))
NAMES = Look("string", mappings=titles({cause.finding: cause.title for cause in CAUSES}))
RUNBOOK = Look("string", mappings=titles(RUNBOOKS))
UP = Look(mappings=words({0: ("down", RED), 1: ("up", GREEN)}), steps=((None, RED), (1, GREEN)))


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    built = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE)
    return built.steps([Threshold(value=value, color=color) for value, color in steps])


def _target(query: Query) -> prometheus.Dataquery:
    built = (
        prometheus.Dataquery().expr(query.expr).legend_format(query.legend or "__auto").ref_id(query.ref).datasource(SOURCE)
    )
    if query.table:
        built = built.format(PromQueryFormat.TABLE)
    return built.instant() if query.instant or query.table else built.range()


def _dressed(panel: P, title: str, text: str, queries: Sequence[Query], look: Look, size: tuple[int, int]) -> P:
    panel.title(title).description(text).datasource(SOURCE).span(size[0]).height(size[1]).unit(look.unit)
    panel.thresholds(_thresholds(look.steps)).mappings(list(look.mappings)).no_value("-")
    if look.least is not None:
        panel.min(look.least)
    if look.most is not None:
        panel.max(look.most)
    if look.decimals is not None:
        panel.decimals(look.decimals)
    for query in queries:
        panel.with_target(_target(query))
    return panel


def number(title: str, text: str, query: Query, look: Look, size: tuple[int, int] = (4, 4)) -> stat.Panel:
    """One number, coloured by its thresholds."""
    panel = _dressed(stat.Panel(), title, text, [replace(query, instant=True)], look, size)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])).graph_mode(c.BigValueGraphMode.NONE)
    return panel.color_mode(c.BigValueColorMode.VALUE).color_scheme(
        dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS)
    )


def lines(title: str, text: str, queries: Sequence[Query], look: Look = SHARE, size: tuple[int, int] = (12, 8), *,
          stacked: bool = False) -> timeseries.Panel:  # fmt: skip
    """Lines over time."""
    panel = _dressed(timeseries.Panel(), title, text, queries, look, size)
    panel.line_width(1 if stacked else 2).fill_opacity(60 if stacked else 0).show_points(c.VisibilityMode.NEVER)
    panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC))
    if look.at_least is not None:
        panel.axis_soft_max(look.at_least)
    if stacked:
        panel.stacking(common.StackingConfig().mode(c.StackingMode.NORMAL).group("A"))
    legend = common.VizLegendOptions().show_legend(True).placement(c.LegendPlacement.BOTTOM).calcs([])
    panel.legend(legend.display_mode(c.LegendDisplayMode.LIST))
    return panel.tooltip(common.VizTooltipOptions().mode(c.TooltipDisplayMode.MULTI).sort(c.SortOrder.DESCENDING))


def bars(title: str, text: str, queries: Sequence[Query], look: Look, size: tuple[int, int] = (6, 8)) -> bargauge.Panel:
    """One horizontal bar per series."""
    panel = _dressed(bargauge.Panel(), title, text, [replace(q, instant=True) for q in queries], look, size)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])).orientation(c.VizOrientation.HORIZONTAL)
    panel.display_mode(c.BarGaugeDisplayMode.BASIC).text(common.VizTextDisplayOptions().title_size(14).value_size(18))
    return panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))


def timeline(title: str, text: str, queries: Sequence[Query], look: Look,
             size: tuple[int, int] = (24, 8)) -> statetimeline.Panel:  # fmt: skip
    """Words over time, a row per series."""
    panel = _dressed(statetimeline.Panel(), title, text, queries, look, size)
    panel.show_value(c.VisibilityMode.AUTO).merge_values(True).row_height(0.85).fill_opacity(75).line_width(0)
    panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    return panel.legend(common.VizLegendOptions().show_legend(False).display_mode(c.LegendDisplayMode.HIDDEN)
                        .placement(c.LegendPlacement.BOTTOM).calcs([]))  # fmt: skip


TEXT = Look("string")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its field, its header, how it is read. `cell`: text, gauge, color; `url` links the cell."""

    field: str
    name: str
    look: Look = TEXT
    cell: str = "text"
    width: int | None = None
    url: str = ""


def _properties(column: Column) -> list[DynamicConfigValue]:
    look = column.look
    found: list[tuple[str, Any]] = [("unit", look.unit), ("thresholds", _thresholds(look.steps).build())]
    found += [
        (key, v) for key, v in (("min", look.least), ("max", look.most), ("decimals", look.decimals)) if v is not None
    ]
    if look.mappings:
        found.append(("mappings", list(look.mappings)))
    if column.cell == "gauge":
        found.append(("custom.cellOptions", {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}))
    elif column.cell == "color":
        found.append(("custom.cellOptions", {"type": "color-background", "mode": "basic"}))
    elif column.cell == "colortext":
        found.append(("custom.cellOptions", {"type": "color-text"}))
    found.append(("custom.align", "left" if look.mappings or look.unit == "string" else "right"))
    if column.width:
        found.append(("custom.width", column.width))
    if column.url:
        away = column.url.startswith("http")
        found.append(("links", [{"title": f"Open {column.name}", "url": column.url, "targetBlank": away}]))
    return [DynamicConfigValue(key, v) for key, v in found]


def grid(title: str, text: str, queries: Sequence[Query], columns: Sequence[Column], size: tuple[int, int] = (24, 8),
         sort: tuple[str, bool] | None = None) -> table.Panel:  # fmt: skip
    """A table: queries are merged on their common labels; only `columns` are shown, in their order."""
    panel = _dressed(table.Panel(), title, text, [replace(q, table=True) for q in queries], Look("string"), size)
    panel.with_transformation(DataTransformerConfig("merge", options={}))
    names = {column.field: column.name for column in columns}
    if "Value" in names:  # Grafana calls the values of the only query so, with a letter those of several
        names["Value #A"] = names["Value"]
    panel.with_transformation(DataTransformerConfig("filterFieldsByName", options={"include": {"names": [*names]}}))
    order = {field: n for n, field in enumerate(names)}
    organized = {"excludeByName": {}, "indexByName": order, "renameByName": names}
    panel.with_transformation(DataTransformerConfig("organize", options=organized))
    for column in columns:
        panel.override_by_name(column.name, _properties(column))
    if sort:
        panel.sort_by([common.TableSortByFieldState().display_name(sort[0]).desc(sort[1])])
    return panel.cell_height(c.TableCellHeight.SM).footer(common.TableFooterOptions().show(False).reducer([]))


def prose(title: str, text: str, content: str, size: tuple[int, int]) -> text_panel.Panel:
    """Markdown to be read."""
    panel = text_panel.Panel().title(title).description(text).span(size[0]).height(size[1]).content(content)
    return panel.mode(TextMode.MARKDOWN)


def painted(panel: Drawn, colors: Mapping[str, str]) -> Drawn:
    """Series by name in fixed colours."""
    for name, color in colors.items():
        panel.override_by_name(name, [DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})])
    return panel


def dashed(panel: timeseries.Panel, *names: str) -> timeseries.Panel:
    """Series by name as dashed lines: two that lie on each other are still two."""
    for name in names:
        panel.override_by_name(name, [DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [12, 8]})])
    return panel


def phases(panel: timeseries.Panel) -> timeseries.Panel:
    """Series named after phases, in the colours of the phases."""
    return painted(panel, PHASES)
