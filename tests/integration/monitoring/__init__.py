"""The chart's alerts and dashboards, evaluated by Prometheus."""
