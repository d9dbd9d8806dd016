# %% [markdown]
# # From a function to a job
#
# Each part between two `# %%` is a cell: open this file as a notebook (VS Code, Jupytext), or run
# it with `python docs/tutorial.py`. It needs `ddp-operator` and PyTorch on a Linux machine, no
# cluster and no GPU.

# %% [markdown]
# ## What every rank does
#
# A function that imports what it needs by itself: only its text travels. The operator sets
# `RANK`, `WORLD_SIZE` and `MASTER_ADDR`, which is all that `init_process_group` asks for.


# %%
def train(steps: int, rate: float) -> None:
    """Fit a line, with the gradients of all ranks averaged."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(1, steps + 1):
        inputs = torch.rand(32, 1)
        loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} of {size}: step {step}/{steps}, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


# %% [markdown]
# ## Two ranks on this machine
#
# `LocalClient` runs a job as processes, decided by the same code as on a cluster. Its folder has
# their logs, and checkpoints if there are any.

# %%
from ddp_operator import LocalClient

client = LocalClient()
job = client.run(train, arguments={"steps": 20, "rate": 0.1}, replicas=2)
print(job, "in", client.workdir)

# %% [markdown]
# What all ranks print is one stream, each line with its rank. It follows restarts, too, and ends
# with the job.

# %%
for line in job.logs(follow=True):
    print(line)

# %% [markdown]
# `wait` returns the last state. With `on_progress` it tells of each new one, here in a word.

# %%
ended = job.wait(timeout=120, on_progress=lambda status: print("now", status.phase))
print("ended:", ended.phase)

# %% [markdown]
# ## Where it goes wrong
#
# A job that fails raises an error that says why, and what to do about it.

# %%
from ddp_operator.sdk import FunctionError, JobFailedError


def read(path: str) -> None:
    """Fail, as anything may."""
    import sys

    print(f"ValueError: no such file: {path}", file=sys.stderr)
    sys.exit(64)  # what this operator takes for: starting anew cannot help


broken = client.run(read, arguments={"path": "missing.csv"})
try:
    broken.wait(timeout=120)
except JobFailedError as error:
    print("failed:", error.diagnosis.last_words[-1])
    print(error.diagnosis)

# %% [markdown]
# What a function needs besides its own text is found before anything is sent.

# %%
rate = 0.1


def train_with_helper() -> None:
    """Use what is not in it."""
    print(rate)


try:
    client.run(train_with_helper)
except FunctionError as error:
    print("refused:", error)

# %%
client.close()  # no process outlives it

# %% [markdown]
# ## On a cluster
#
# The same calls, with an image that has Python, PyTorch and what the function imports:
#
#     client = Client(namespace="research")
#     job = client.run(train, arguments={"steps": 20000, "rate": 0.1}, replicas=4, image="…")
#
# `job` may be forgotten: `client.job(name)` finds it again, tomorrow or from another machine.
