# %% [markdown]
# # From a function to a job
#
# You need a Linux machine with `ddp-operator` and PyTorch, no cluster and no GPU. Open
# `docs/tutorial.py` as a notebook (VS Code, Jupytext), or run `python docs/tutorial.py`.

# %% [markdown]
# ## The function of a rank
#
# Only the text of the function is sent, so it imports its own modules. The operator sets `RANK`,
# `WORLD_SIZE` and `MASTER_ADDR`, as `init_process_group` needs them.


# %%
def train(steps: int, rate: float) -> None:
    """Fit a line; DDP averages the gradients of all ranks."""
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
# `LocalClient` runs a job as processes, with the same planner as on a cluster. Its working
# directory has logs and checkpoints.

# %%
from ddp_client import LocalClient

client = LocalClient()
job = client.run(train, arguments={"steps": 20, "rate": 0.1}, replicas=2)
print(job, "in", client.workdir)

# %% [markdown]
# Follow the output of all ranks, through restarts, until the job ends. Each line has its rank.

# %%
for line in job.logs(follow=True):
    print(line)

# %% [markdown]
# `wait` returns the last state; `on_progress` receives each new one.

# %%
ended = job.wait(timeout=120, on_progress=lambda status: print("now", status.phase))
print("ended:", ended.phase)

# %% [markdown]
# ## When a job fails
#
# `wait` raises an error that says why, and what to do.

# %%
from ddp_client.sdk import FunctionError, JobFailedError


def read(path: str) -> None:
    """Fail with exit code 64."""
    import sys

    print(f"ValueError: no such file: {path}", file=sys.stderr)
    sys.exit(64)  # means wrong configuration: the operator does not restart the job


broken = client.run(read, arguments={"path": "missing.csv"})
try:
    broken.wait(timeout=120)
except JobFailedError as error:
    print("failed:", error.diagnosis.last_words[-1])
    print(error.diagnosis)

# %% [markdown]
# A function that needs something outside itself is refused before anything is sent.

# %%
rate = 0.1


def train_with_helper() -> None:
    """Use a name from outside."""
    print(rate)


try:
    client.run(train_with_helper)
except FunctionError as error:
    print("refused:", error)

# %%
client.close()  # ends all processes

# %% [markdown]
# ## On a cluster
#
# The same calls work with an image that has Python, PyTorch and the function's imports:
#
#     client = Client(namespace="research")
#     job = client.run(train, arguments={"steps": 20000, "rate": 0.1}, replicas=4, image="…")
#
# `client.job(name)` finds the job again later, also from another machine.
