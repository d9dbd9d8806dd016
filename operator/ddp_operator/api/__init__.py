"""The contract: what users write and read. Models, rules and CRD generation; no I/O."""
