"""What the chart has Prometheus ask, asked of Prometheus."""
