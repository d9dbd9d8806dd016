"""The Helm chart's tools: what is generated from the model of its values, and releases."""
