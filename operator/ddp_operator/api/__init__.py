"""The API that users write and read: models, rules and CRD generation; no I/O."""
