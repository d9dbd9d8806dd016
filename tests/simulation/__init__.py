"""The whole engine over random histories, in virtual time.

Everything of the operator that decides and remembers is the real thing: the event loop's tasks, the
work queue, the workers, the reconciler, the job and pod caches, the plans. Simulated is what lies
beyond its ports:

- an API server with its watches (`server`, `watch`, `mutations`) and what requests to it meet
  (`cluster`, `refusals`),
- nodes and kubelets (`nodes`, `kubelet`) and what keeps pods from starting (`start_faults`),
- trainers and launchers (`training`, `launchers`), users, and the clock (`clock`).

A history is a string of bytes, three to a step, so that hypothesis can generate and shrink it
cheaply. In the end all troubles are over but for one that may last (`convergence`, `lasting`).

`invariants` judges every write at the moment when it takes effect, by what truly happened
(`truth`): what a failure is called, what is charged, why a job ends. It never asks the operator.

`python -m tests.simulation HEX` tells the history of those bytes step by step;
`python -m tests.simulation --histories N` lives through new ones.
"""
