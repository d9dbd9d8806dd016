"""Sharded trainings of frameworks lose ranks, resume from memory and equal one without a loss."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.ports import free_port
from tests.trainer.examples.test_frameworks import MEMORY_PAGE, block
from tests.trainer.support.worlds import world_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BEGIN = """
import hashlib, json, os, signal, threading, torch
rank, generation = int(os.environ["RANK"]), int(os.environ["DDP_GENERATION"])
kills, steps = json.loads(os.environ["KILLS"]), int(os.environ["STEPS"])
kill = kills[generation - 1] if generation <= len(kills) else None
begun = None
def begin(step):
    "Give each rank other random numbers."
    if step == 1:
        torch.manual_seed(rank)
def record(kind, step, loss):
    "Print the loss to the bit, and die if it is time."
    global begun
    begun = step if begun is None else begun
    line = f"generation {generation} rank {rank} step {step} loss {float(loss).hex()}"
    print(f"{kind}: {line}", flush=True)
    if kind == "disturbed" and kill is not None and kill[:2] == [rank, step - begun]:
        if not kill[2]:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(kill[2], os.kill, (os.getpid(), signal.SIGKILL)).start()
def parts(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return b"".join(map(parts, value))
    if isinstance(value, torch.Tensor):
        value = getattr(value, "to_local", lambda: value)().contiguous().numpy().tobytes()
    return value if isinstance(value, bytes) else repr(value).encode()
def end(kind, model, optimizer):
    "Print a digest of this rank's part of the model and the optimizer."
    from torch.distributed.tensor import DTensor
    assert any(isinstance(one, DTensor) for one in model.parameters()), "it is sharded"
    digest = hashlib.sha256(parts([model.state_dict(), optimizer.state_dict()])).hexdigest()
    print(f"{kind}: rank {rank} ends with {digest}", flush=True)
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 5)
        self.outer = torch.nn.Linear(5, 8)
        self.dropout = torch.nn.Dropout(0.5)
    def forward(self, inputs):
        return inputs + self.dropout(self.outer(torch.tanh(self.inner(inputs))))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(Layer(), Layer())
        self.head = torch.nn.Linear(8, 1)
    def forward(self, inputs, labels):
        return {"loss": (self.head(self.layers(inputs)).squeeze(1) - labels).square().mean()}
torch.manual_seed(0)
inputs = torch.randn(96, 8)
"""
ON_CPUS = """
# Accelerate uses FSDP only if the process group is one of accelerators.
from accelerate import PartialState
from accelerate.utils import DistributedType
PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
"""
HUGGING_FACE = """
from transformers import Trainer, TrainingArguments
class Recording(Trainer):
    kind = "disturbed"
    def training_step(self, *parts, **more):
        step = self.state.global_step + 1
        begin(step)
        loss = super().training_step(*parts, **more)
        record(self.kind, step, loss)
        return loss
arguments = TrainingArguments(
    output_dir=os.environ["DDP_CHECKPOINT_DIR"], max_steps=steps, per_device_train_batch_size=4,
    learning_rate=0.01, lr_scheduler_type="cosine", use_cpu=True, ddp_backend="gloo",
    report_to="none", disable_tqdm=True, logging_strategy="no", save_strategy="no", {fsdp}
)
{on_cpus}
{model}
def new_trainer():
    return Recording(model=new_model(), args=arguments, train_dataset=data)
trainer, newest_checkpoint = new_trainer(), None
{train}
end("disturbed", trainer.model, trainer.optimizer)
undisturbed = new_trainer()
undisturbed.kind = "undisturbed"
undisturbed.train()
end("undisturbed", undisturbed.model, undisturbed.optimizer)
"""
OWN_MODEL = """
data = [{"inputs": one, "labels": one.sum()} for one in inputs]
def new_model():
    torch.manual_seed(0)
    return Net()
"""
MODEL_SHARDED_BY_TRANSFORMERS = """
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig
tokens = torch.randint(32, (96, 6))
data = [{"input_ids": one, "labels": one} for one in tokens]
sizes = dict(hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2)
config = LlamaConfig(vocab_size=32, attention_dropout=0.5, **sizes)
def new_model():
    torch.manual_seed(0)
    path = os.environ["TMPDIR"] + "/llama"
    LlamaForCausalLM(config).save_pretrained(path, is_main_process=rank == 0)
    torch.distributed.barrier()
    distributed = DistributedConfig(fsdp_size=2)
    return LlamaForCausalLM.from_pretrained(path, distributed_config=distributed)
"""
ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
{on_cpus}
layers = {"transformer_cls_names_to_wrap": ["Layer"], "auto_wrap_policy": "transformer_based_wrap"}
accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, **layers))
inputs = torch.randn(8 * steps, 8)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1))
def prepared():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * steps)
    order = torch.Generator().manual_seed(0)
    loader = torch.utils.data.DataLoader(data, 4, shuffle=True, generator=order)
    return accelerator.prepare(net, optimizer, scheduler, loader)
def train(kind, net, optimizer, scheduler, loader, first, save):
    for step, batch in enumerate(accelerator.skip_first_batches(loader, first), first + 1):
        begin(step)
        loss = net(*batch)["loss"]
        record(kind, step, loss)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        save(step)
    end(kind, net, optimizer)
def save(step):
    if step % 5 == 0:
        memory.save(step, state())
net, optimizer, scheduler, loader = prepared()
{load}
train("disturbed", net, optimizer, scheduler, loader, first, save)
accelerator.free_memory()
train("undisturbed", *prepared(), 0, lambda _: None)
accelerator.end_training()
"""
LIGHTNING = """
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
class Training(LightningModule):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.net = kind, Net()
    def configure_model(self):
        for module in (*self.net.layers, self.net):
            fully_shard(module, mesh=self.device_mesh["data_parallel"])
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]
    def training_step(self, batch, _):
        step = self.global_step + 1
        begin(step)
        loss = self.net(*batch)["loss"]
        record(self.kind, step, loss)
        return loss
def new_loader():
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1))
    return StatefulDataLoader(data, 4, sampler=DistributedSampler(data, 2, rank))
options = dict(
    accelerator="cpu", strategy=ModelParallelStrategy(2, 1), devices=2, max_steps=steps,
    max_epochs=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, use_distributed_sampler=False,
)
model, loader, newest_checkpoint = Training("disturbed"), new_loader(), None
{fit}
end("disturbed", model.net, trainer.optimizers[0])
options["strategy"] = ModelParallelStrategy(2, 1)
trainer, model = Trainer(**options), Training("undisturbed")
trainer.fit(model, new_loader())
end("undisturbed", model.net, trainer.optimizers[0])
"""
FSDP = 'fsdp=True, fsdp_config={"transformer_layer_cls_to_wrap": ["Layer"]},'
RESUMING = HUGGING_FACE.replace("{train}", block("memory.huggingface", page=MEMORY_PAGE))
SCRIPTS = {
    "hugging face": RESUMING.replace("{on_cpus}", ON_CPUS)
    .replace("{fsdp}", FSDP)
    .replace("{model}", OWN_MODEL),
    "lightning": LIGHTNING.replace("{fit}", block("memory.lightning", page=MEMORY_PAGE)),
    "hugging face, sharded by transformers": RESUMING.replace("{on_cpus}", "")
    .replace("{fsdp}", "")
    .replace("{model}", MODEL_SHARDED_BY_TRANSFORMERS),
    "accelerate": ACCELERATE.replace("{on_cpus}", ON_CPUS).replace(
        "{load}", block("torch.set_rng_state", page=MEMORY_PAGE)
    ),
}
DAILY = ("hugging face", "lightning")


class Kill(NamedTuple):
    """The end of a rank in one generation of the group."""

    rank: int
    steps: int
    """Steps between the first one of the generation and this one."""
    seconds: float
    """Time between that step and the kill."""


def lose(folder: Path, script: str, kills: Sequence[Kill], *, steps: int) -> list[int]:
    """Run a script, lose its ranks, and compare it; return the first step of each generation."""
    (folder / "train.py").write_text(BEGIN + script)
    (folder / "memory").mkdir()
    variables = {
        **{"DDP_CHECKPOINT_DIR": str(folder / "checkpoints"), "MASTER_PORT": str(free_port())},
        **{"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
        **{"KILLS": json.dumps(kills), "STEPS": str(steps), "DDP_MEMBERS": "0"},
        "DDP_MEMORY_DIR": str(folder / "memory"),
        "DDP_MEMORY_BYTES": str(64 << 20),
        "DDP_MEMORY_COPIES": "0",
    }
    with world_job(folder) as job:
        command = ["--", sys.executable, str(folder / "train.py")]
        pod = job.start(0, variables=variables, command=command, nodes=1, local_world_size=2)
        pod.wait_to_listen()
        number = 0
        for generation in range(2, len(kills) + 2):
            news = pod.news(after=number, wait=25)
            while not news["failures"]:
                assert pod.process.poll() is None, pod.log
                news = pod.news(after=news["number"], wait=25)
            number = news["number"]
            assert pod.tell(generation, 0, nodes=1, members="0") == (200, generation)
        assert pod.wait() == 0, pod.log
        return compare(pod.log, steps=steps)


def compare(log: str, *, steps: int) -> list[int]:
    """Compare all losses with those of the undisturbed training, and the states at the end."""
    losses: dict[str, set[tuple[str, int, str]]] = {"disturbed": set(), "undisturbed": set()}
    begins: dict[int, int] = {}
    line = r"(\w+): generation (\d+) rank (\d) step (\d+) loss (\S+)"
    for kind, generation, rank, step, loss in re.findall(line, log):
        losses[kind].add((rank, int(step), loss))
        begins.setdefault(int(generation), int(step))
    assert len(losses["undisturbed"]) == 2 * steps
    assert losses["disturbed"] == losses["undisturbed"], log
    ends = {kind: set(re.findall(rf"{kind}: rank (\d ends with \w+)", log)) for kind in losses}
    assert len(ends["disturbed"]) == 2
    assert ends["disturbed"] == ends["undisturbed"], log
    return list(begins.values())


@pytest.mark.parametrize(
    "name",
    [name if name in DAILY else pytest.param(name, marks=pytest.mark.nightly) for name in SCRIPTS],
)
def test_sharded_training_resumes_to_the_bit_after_a_loss(name: str, tmp_path: Path) -> None:
    """It is lost in the second epoch, which has other batches."""
    begins = lose(tmp_path, SCRIPTS[name], [Kill(rank=1, steps=16, seconds=0)], steps=26)
    assert begins == [1, 16]


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCRIPTS)
def test_sharded_training_equals_itself_after_twenty_random_losses(
    name: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    kills = [Kill(dice.randrange(2), dice.randint(0, 12), dice.random() / 20) for _ in range(20)]
    begins = lose(tmp_path, SCRIPTS[name], kills, steps=300)
    assert len(begins) == 21
    assert begins == sorted(begins)
    assert {begin % 5 for begin in begins} == {1}
    assert begins[-1] > 5
