"""Decide what a job needs next: `plan.plan` returns a decision, or the writes that carry one out.

A function that decides returns None where there is nothing to decide.
"""
