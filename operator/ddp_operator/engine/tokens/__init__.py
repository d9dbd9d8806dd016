"""The tokens with which the operator and the pods of a job trust each other."""
