"""Recording rules and alerts: tables in Python, written as YAML that Prometheus, vmalert and the operator load."""
