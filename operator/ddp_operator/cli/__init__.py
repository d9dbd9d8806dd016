"""`kubectl ddp`: what people see of their jobs, and what they do with them.

`views` make text of a job, its pods and the time, and know no cluster; `commands` fetch what a view
needs, print it, and change what they were told to change.
"""
