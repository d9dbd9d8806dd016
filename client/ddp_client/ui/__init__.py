"""The live page of `kubectl ddp ui`: jobs and their reports in a browser, read-only.

`server.py` serves on loopback, `access.py` checks the token, `polling.py` reads the cluster, and
`pages.py` writes HTML. It needs `ddp-client[report]`.
"""
