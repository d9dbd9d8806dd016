"""Scripts of frameworks restart in their pods after a loss, and end as if there had been none."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.trainer.examples.test_frameworks import MEMORY_PAGE, block
from tests.trainer.support.worlds import WorldPod, world_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BEGIN = """
import glob, hashlib, os, signal, torch
folder = os.environ["DDP_CHECKPOINT_DIR"]
def die_at(step, lost=7):
    "Kill rank 1 of the first generation, if the test wants that."
    print(f"step {step}", flush=True)
    if step == lost and os.environ["RANK"] == "1" and os.environ["DDP_GENERATION"] == "1":
        if "KILL" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )
    def forward(self, inputs, labels):
        return {"loss": (self.layers(inputs).squeeze(1) - labels).square().mean()}
def digest(model):
    values = [value.numpy().tobytes() for value in model.state_dict().values()]
    return hashlib.sha256(b"".join(values)).hexdigest()
torch.manual_seed(0)
inputs = torch.randn(96, 4)
model = Net()
"""
HUGGING_FACE = """
from transformers import Trainer, TrainerCallback, TrainingArguments
class Die(TrainerCallback):
    def on_step_end(self, arguments, state, control, **_):
        die_at(state.global_step)
arguments = TrainingArguments(
    output_dir=folder, max_steps=12, save_steps=5, per_device_train_batch_size=4, use_cpu=True,
    report_to="none", disable_tqdm=True, logging_strategy="no", ddp_backend="gloo",
)
data = [{"inputs": one, "labels": one.sum()} for one in inputs]
trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Die()])
{train}
print("ends with", digest(model), flush=True)
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator()
assert accelerator.num_processes == 2
{functions}
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
order = torch.Generator().manual_seed(0)
net, optimizer, loader = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(data, 4, shuffle=True, generator=order)
)
first = load()
for step, batch in enumerate(accelerator.skip_first_batches(loader, first), first + 1):
    accelerator.backward(net(*batch)["loss"])
    optimizer.step()
    optimizer.zero_grad()
    die_at(step)
    if step % 5 == 0:
        save(step)
print("ends with", digest(model), flush=True)
accelerator.end_training()
"""
LIGHTNING = """
{report}
import copy
from lightning.pytorch import LightningModule
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
class Training(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def configure_callbacks(self):
        return [Report()]
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
    def training_step(self, batch, _):
        return self.net(*batch)["loss"]
class Killed(Training):
    def on_train_batch_end(self, *_):
        die_at(self.global_step)
def new_loader():
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1))
    sampler = DistributedSampler(data, 2, int(os.environ["RANK"]))
    return StatefulDataLoader(data, 4, sampler=sampler)
model.layers[1].p = 0.0
undisturbed = Training(copy.deepcopy(model))
options = dict(
    accelerator="cpu", strategy="ddp", devices=2, max_steps=12, log_every_n_steps=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    use_distributed_sampler=False,
)
model, loader, newest_checkpoint = Killed(model), new_loader(), None
{fit}
print("ends with", digest(model), flush=True)
Trainer(**options).fit(undisturbed, new_loader())
print("ends with", digest(undisturbed), flush=True)
"""
SAVE_IN_MEMORY = """
def save(step):
    memory.save(step, state(), replicated=True)
"""
SCRIPTS = {
    "hugging face": HUGGING_FACE.replace("{train}", block("trainer_state.json")),
    "accelerate": ACCELERATE.replace("{functions}", block("accelerator.save_state")),
    "hugging face in memory": "newest_checkpoint = None"
    + HUGGING_FACE.replace("save_steps=5", 'save_strategy="no"').replace(
        "{train}", block("memory.huggingface", page=MEMORY_PAGE)
    ),
    "accelerate in memory": "model.layers[1].p = 0.0"
    + ACCELERATE.replace("{functions}", "").replace(
        "first = load()",
        block("accelerator.unwrap_model", page=MEMORY_PAGE) + SAVE_IN_MEMORY,
    ),
}


def ended(
    folder: Path,
    script: str,
    *,
    kill: bool,
    in_memory: bool,
    after_loss: Callable[[WorldPod], None] = lambda _: None,
) -> str:
    """Return a digest of the final state of both ranks of a pod."""
    folder.mkdir()
    (folder / "train.py").write_text(BEGIN + script)
    variables = {
        **{"DDP_CHECKPOINT_DIR": str(folder / "checkpoints"), "MASTER_PORT": str(free_port())},
        **{"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        **({"KILL": "yes"} if kill else {}),
    }
    members = {}
    if in_memory:
        members = {"members": "0"}
        variables |= {
            "DDP_MEMBERS": "0",
            "DDP_MEMORY_DIR": str(folder / "memory"),
            "DDP_MEMORY_BYTES": str(64 << 20),
            "DDP_MEMORY_COPIES": "0",
        }
        (folder / "memory").mkdir()
    with world_job(folder) as job:
        command = ["--", sys.executable, str(folder / "train.py")]
        pod = job.start(0, variables=variables, command=command, nodes=1, local_world_size=2)
        pod.wait_to_listen()
        if kill:
            news = pod.news()
            while not news["failures"]:
                assert pod.process.poll() is None, pod.log
                news = pod.news(after=news["number"], wait=25)
            assert json.loads(news["failures"][0]["message"])["rank"] == 1
            after_loss(pod)
            assert pod.tell(2, 0, nodes=1, **members) == (200, 2)
        assert pod.wait() == 0, pod.log
        assert pod.log.count("step 1\n") == 2, "both ranks resumed"
        assert pod.log.count("step 6\n") == (4 if kill else 2), "from step 5"
        [digest] = set(re.findall(r"ends with (\w+)", pod.log))
        return str(digest)


@pytest.mark.parametrize(
    "name",
    [
        "hugging face",
        pytest.param("accelerate in memory", marks=pytest.mark.nightly),
        pytest.param("accelerate", marks=pytest.mark.nightly),
        pytest.param("hugging face in memory", marks=pytest.mark.nightly),
    ],
)
def test_a_script_resumes_in_its_pod(name: str, tmp_path: Path) -> None:
    script, in_memory = SCRIPTS[name], "memory" in name
    assert ended(tmp_path / "killed", script, kill=True, in_memory=in_memory) == ended(
        tmp_path / "undisturbed", script, kill=False, in_memory=in_memory
    )


def test_a_script_of_lightning_reports_and_resumes(tmp_path: Path) -> None:
    def check_report(pod: WorldPod) -> None:
        status, report = pod.request("GET", "/status")
        assert (status, report["step"], report["totalSteps"]) == (200, 6, 12)
        assert report["loss"] > 0

    script = LIGHTNING.replace("{report}", block("class Report(Callback)")).replace(
        "{fit}", block("memory.lightning", page=MEMORY_PAGE)
    )
    # Importing Lightning takes most of the time, so the processes also train undisturbed.
    ended(tmp_path / "killed", script, kill=True, in_memory=True, after_loss=check_report)
