"""Variables, links and the empty page: what every dashboard has.

The dashboards start from `page` and add variables as they need them.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dashboards.panels import SOURCE

TAG = "overlap-exporter"


def datasource() -> dashboard.DatasourceVariable:
    """Which Prometheus."""
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def variable(name: str, label: str, query: str, text: str, *, many: bool) -> dashboard.QueryVariable:
    """Values of a label. `many`: several or all; a label that is missing on all series still matches "all"."""
    built = dashboard.QueryVariable(name).label(label).description(text).datasource(SOURCE).query(query)
    built.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.NATURAL_ASC).multi(many).include_all(many)
    return built.all_value(".*").current(VariableOption(text="All", value="$__all")) if many else built


def cluster() -> dashboard.QueryVariable:
    """May have no value at all: "all" matches series without the label."""
    return variable(
        "cluster", "Cluster", "label_values(overlap_build_info, cluster)", "Clusters; may be missing", many=True
    )


def instance(*, many: bool) -> dashboard.QueryVariable:
    """Nodes."""
    query = 'label_values(overlap_build_info{cluster=~"$cluster"}, instance)'
    return variable("instance", "Node", query, "Nodes that run the exporter", many=many)


def window(default: str = "60s") -> dashboard.CustomVariable:
    """Length of the windows that the exporter looks at."""
    options = [VariableOption(text=w, value=w, selected=w == default) for w in ("15s", "60s", "300s")]
    built = dashboard.CustomVariable("window").label("Window").values("15s,60s,300s").options(options)
    built.description("Length of the window behind health and the shares")
    return built.current(VariableOption(text=default, value=default))


def links(own: str) -> list[dashboard.DashboardLink]:
    """To the other dashboards, with the variables that they share."""
    pages = (
        ("overlap-fleet", "Fleet"),
        ("overlap-job", "Job"),
        ("overlap-node", "Node"),
        ("overlap-exporter", "Exporter"),
        ("overlap-runbooks", "Runbooks"),
    )
    return [
        dashboard.DashboardLink(title).type(DashboardLinkType.LINK).icon("dashboard").tooltip(f"{title} dashboard")
        .url(f"/d/{uid}").tags([]).as_dropdown(False).target_blank(False).include_vars(True).keep_time(True)
        for uid, title in pages if uid != own
    ]  # fmt: skip


def link(title: str, url: str, tooltip: str) -> dashboard.DashboardLink:
    """To somewhere else, in a new tab."""
    built = (
        dashboard.DashboardLink(title).type(DashboardLinkType.LINK).icon("external link").tooltip(tooltip).url(url).tags([])
    )
    return built.as_dropdown(False).target_blank(True).include_vars(False).keep_time(False)


def page(uid: str, title: str, text: str, *, refresh: str = "30s", since: str = "now-1h") -> dashboard.Dashboard:
    """An empty dashboard with what all of them have."""
    built = dashboard.Dashboard(title).uid(uid).description(text).tags([TAG]).refresh(refresh).time(since, "now")
    built.timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR).editable()
    return built.links([*links(uid)]).with_variable(datasource())
