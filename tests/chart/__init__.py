"""Parts of the chart that several tests read: rules, dashboards, commands of its README."""
