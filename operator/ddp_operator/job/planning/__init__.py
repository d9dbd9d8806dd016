"""Decide what a job needs next: `plan.plan` returns a decision, or the API writes that carry one
out.
"""
