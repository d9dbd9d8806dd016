"""The whole engine over random histories, in virtual time.

Everything of the operator that decides and remembers is the real thing: the event loop's tasks, the
work queue, the workers, the reconciler, the job and pod caches, the plans. Simulated is what lies
beyond its ports: an API server with its watches (`server`, `watch`), the network in between
(`cluster`), kubelets, nodes and users (`machine`), and the clock (`clock`). A history is a string
of bytes, three to a step, so that hypothesis can generate and shrink it cheaply. `invariants`
judges every write at the moment when it takes effect.

`python -m tests.simulation HEX` tells the history of those bytes step by step.
"""
