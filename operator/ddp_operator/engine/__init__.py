"""The heart: joins the brain (`job`) to the hands (`kube` or `local`).

What changed is put into a queue by name; workers take names out, look at the state, plan, and carry
the plan out.
"""
