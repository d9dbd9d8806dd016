"""The whole engine over random histories, in virtual time.

The operator's deciding parts are real: the event loop's tasks, the work queue, the workers, the
reconciler, the job and pod caches, the plans. Everything beyond its ports is simulated:

- `world`: an API server with watches, refusals and admission; nodes with room, GPUs and taints, and
  the pods of other tenants on them; a scheduler, kubelets, launchers and trainers.
- `actions`: events that change the world: of users, nodes, pods and the cluster.
- `checks`: rules for every write, judged by what really happened (`truth`): the class of a failure,
  its charge, the end of a job. They never ask the operator.

A history is a string of bytes, three to a step, so that hypothesis can generate and shrink it
cheaply. Its first bytes choose a job and a cluster (`world.fleet`). In the end all faults are over,
but for one that may last (`checks.convergence`, `actions.lasting`). A scripted history
(`scripted`) does only what its test says.

`python -m tests.simulation HEX` prints the events of the history of those bytes;
`python -m tests.simulation --histories N` runs new ones.
"""
