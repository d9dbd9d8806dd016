"""The live page of `kubectl ddp ui`: jobs and their reports in a browser, read-only.

`server.py` answers on this machine, `access.py` decides whom, `polling.py` asks the cluster, and
`pages.py` writes HTML, for which it needs `ddp-operator[report]`.
"""
