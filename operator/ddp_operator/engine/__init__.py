"""The controller: connects the planner (`job`) to a cluster (`kube` or `local`).

Names of changed jobs enter a queue. Workers take them, read the state, plan, and carry the plan
out.
"""
