"""Everything about one job, pure: plan it, judge its failures, build its pods."""
