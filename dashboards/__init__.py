"""Grafana dashboards: Python that writes JSON. `make dashboards` runs it; the JSON is committed."""
