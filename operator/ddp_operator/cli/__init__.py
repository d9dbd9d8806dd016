"""`kubectl ddp`: what people see of their jobs, and what they do with them.

`commands` fetch what a view needs (`client`), print what it makes of it (`views`), and change what
they were told to change.
"""
