"""The Helm chart's generated files, and releases."""
