"""Contradictions between the trainer container's command and the job, in Python and in CEL."""

import shlex
from typing import Any, get_args

import cel
import pytest
from ddp_operator.api.rules import SPEC_RULES, violations, warnings
from ddp_operator.api.rules.command import COMMAND_RULES
from ddp_operator.api.rules.contradictions import Contradiction, Kind, contradictions
from ddp_operator.api.spec import DDPJobSpec
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from tests.good_manifests import Json, container, gpus, template
from tests.unit.api.test_rules import _SCHEMA, with_defaults


def found_in(spec: DDPJobSpec) -> list[tuple[Kind, Contradiction]]:
    return [(kind, one) for kind in get_args(Kind) for one in contradictions(spec, kind)]


def written(argv: list[str], *, gpu: int = 0, **spec: Any) -> Json:
    trainer = container(command=argv)
    if gpu:
        trainer["resources"] = gpus(gpu=gpu)
    return {"replicas": 2, "template": template(trainer), **spec}


def spec_of(line: str, **spec: Any) -> DDPJobSpec:
    return DDPJobSpec.model_validate(written(shlex.split(line), **spec))


@pytest.mark.parametrize(
    ("line", "spec", "kind", "text"),
    [
        ("torchrun --nnodes=1 t.py", {}, "pods", "torchrun --nnodes=1, but replicas is 2"),
        ("torchrun --nnodes 2 t.py", {"replicas": 1}, "pods", "but replicas is 1"),
        ("torchrun --nnodes=3:4 t.py", {}, "pods", "torchrun --nnodes=3:4"),
        ("torchrun --tee 3 --standalone t.py", {}, "pods", "torchrun --standalone"),
        ("python -m torch.distributed.launch --use_env --nnodes=9 t.py", {}, "pods", "--nnodes=9"),
        (
            "accelerate launch --mixed_precision bf16 --num_machines 4 t.py",
            {},
            "pods",
            "machines 4",
        ),
        ("deepspeed --num_nodes=1 t.py", {}, "pods", "deepspeed --num_nodes=1"),
        ("tune run --nnodes 4 --rdzv_endpoint a:1 recipe", {}, "pods", "tune run --nnodes 4"),
        ("bash -c 'cd /src && exec torchrun --nnodes=1 t.py | tee l'", {}, "pods", "--nnodes=1"),
        ("env A=b torchrun --nnodes=1 t.py", {}, "pods", "torchrun --nnodes=1"),
        (
            "torchrun --nnodes=8 t.py",
            {"elastic": {"minReplicas": 1}},
            "pods",
            "torchrun --nnodes=8",
        ),
        ("torchrun --node_rank 0 t.py", {}, "place", "torchrun --node_rank 0, but the job has 2"),
        ("accelerate launch --machine_rank=1 t.py", {}, "place", "accelerate --machine_rank=1"),
        ("torchrun --rdzv-endpoint=localhost:29400 t.py", {}, "place", "localhost:29400"),
        ("torchrun --nproc_per_node=8 t.py", {"gpu": 4}, "processes", "but each pod has 4 GPUs"),
        ("deepspeed --num_gpus 2 t.py", {"replicas": 1, "gpu": 1}, "processes", "has 1 GPU"),
        ("torchrun --nproc-per-node 2 t.py", {"nprocPerNode": 4}, "processes", "is 4"),
        ("torchrun --nproc-per-node 2 t.py", {"nprocPerNode": 4, "gpu": -1}, "processes", "is 4"),
        ("torchrun --node_rank='$RANK' t.py", {}, "variable", "here it is $(NODE_RANK)"),
        ("torchrun --master_port '${MASTER_PORT}' t.py", {}, "variable", "$(MASTER_PORT)"),
        ("accelerate launch --main_process_ip '$IP' t.py", {}, "variable", "$(MASTER_ADDR)"),
        ("bash -c python train.py", {}, "unquoted", "python would run without train.py"),
        ("/bin/sh -ec torchrun --nnodes=2 t.py", {}, "unquoted", "torchrun would run without"),
        ("bash -c accelerate launch t.py", {}, "unquoted", "accelerate would run without launch"),
        ("bash -c deepspeed t.py", {"replicas": 1}, "unquoted", "deepspeed would run without t.py"),
        ("bash -c cd /x '&&' python t.py", {}, "unquoted", "/x && python t.py"),
        ("env MASTER_ADDR=localhost python t.py", {}, "place", "MASTER_ADDR=localhost, but the"),
        ("bash -c 'export RANK=0; python t.py'", {}, "place", "RANK=0, but the job has 2 pods"),
        ("env PET_NNODES=1 bash -c 'torchrun t.py'", {}, "pods", "PET_NNODES=1, but replicas is 2"),
        ("bash -c 'PET_NODE_RANK=0 torchrun t.py'", {}, "place", "PET_NODE_RANK=0, but the"),
        ("composer --master_addr 127.0.0.1 t.py", {}, "place", "composer --master_addr 127.0.0.1"),
        ("composer --node_rank '$NODE_RANK' t.py", {}, "variable", "here it is $(NODE_RANK)"),
        ("composer -n 8 t.py", {"gpu": 4}, "processes", "composer -n 8, but each pod has 4 GPUs"),
        ("fabric run --num-nodes=1 t.py", {}, "pods", "fabric run --num-nodes=1, but replicas is"),
        (
            "lightning run model --num-nodes 2 --main-address=127.0.0.1 t.py",
            {},
            "place",
            "lightning run model --main-address=127.0.0.1",
        ),
        ("torchrun --master_addr=LOCALHOST t.py", {}, "place", "--master_addr=LOCALHOST"),
        ("torchrun --master-addr localhost.localdomain t.py", {}, "place", "localhost.localdomain"),
        ("bash -c 'N=1; torchrun --nnodes=$N t.py'", {}, "pods", "torchrun --nnodes=$N, but"),
        ("bash -c 'N=8; torchrun --nproc_per_node=${N} t.py'", {"gpu": 4}, "processes", "{N}, but"),
    ],
)
def test_certain_contradiction_is_named(
    line: str, spec: dict[str, Any], kind: str, text: str
) -> None:
    found = [(kind, one.text) for kind, one in found_in(spec_of(line, **spec)) if one.is_certain]
    assert found[0][0] == kind
    assert text in found[0][1]


@pytest.mark.parametrize(
    ("line", "spec", "text"),
    [
        ("bash -c 'if x; then torchrun --nnodes=1 t.py; fi'", {}, "torchrun --nnodes=1"),
        ("bash -c 'x || torchrun --standalone t.py'", {}, "torchrun --standalone"),
        ("bash -c '[ -e x ] && torchrun --nnodes=1 t.py'", {}, "torchrun --nnodes=1"),
        ("bash -c 'torchrun --nnodes=1 a.py; torchrun b.py'", {}, "torchrun --nnodes=1"),
        ("/entrypoint.sh torchrun --nnodes=1 t.py", {}, "torchrun --nnodes=1"),
        ("torchrun --nproc_per_node=2 t.py", {"gpu": 4}, "set spec.nprocPerNode to 2"),
        ("torchrun --nproc_per_node=2 t.py", {}, "set spec.nprocPerNode to 2"),
        ("accelerate launch t.py", {}, "accelerate does not read"),
        ("accelerate launch --num_machines 1 t.py", {}, "--num_machines 1, but replicas is 2"),
        ("deepspeed t.py", {}, "start the script with torchrun"),
        ("tune run --nnodes 2 recipe", {}, "--rdzv_endpoint $(MASTER_ADDR):$(MASTER_PORT)"),
        ("python t.py --rank '$RANK'", {}, "no shell replaces $RANK"),
        ("bash -c 'python t.py' _ --lr 1", {}, "does not use these words"),
        ("bash -c 'torchrun --nnodes=${NNODES:-1} t.py'", {}, "--nnodes=${NNODES:-1}, but"),
        ("bash -c 'torchrun --nnodes=$WORLD_SIZE t.py'", {"gpu": 8}, "not pods; use PET_NNODES"),
        ("torchrun --node_rank='$(RANK)' t.py", {"gpu": 8}, "not pods; use NODE_RANK"),
        ("bash -c 'torchrun --node_rank=${RANK:-0} t.py'", {"gpu": 2}, "not pods; use NODE_RANK"),
        ("python t.py --dist-url tcp://127.0.0.1:23456", {}, "tcp://127.0.0.1:23456 is a"),
        ("env WORLD_SIZE=4 python t.py", {}, "WORLD_SIZE=4, but the job has 2 processes in 2 pods"),
        ("composer -n 8 --world_size=8 t.py", {"gpu": 8}, "the job has 16 processes in 2 pods"),
        (
            "accelerate launch --num_machines 2 --num_processes 8 t.py",
            {"gpu": 8},
            "counts the processes of all pods, which are 16",
        ),
        ("fabric run --devices 8 t.py", {"gpu": 8}, "add --num-nodes 2, --node-rank $(NODE_RANK)"),
        ("mpirun -np 8 python t.py", {"gpu": 8}, "mpirun does not read the job's number of pods"),
        ("horovodrun -np 8 -H localhost:8 python t.py", {"gpu": 8}, "horovodrun does not read"),
        ("sh -c 'mpiexec -n 2 python t.py'", {}, "mpiexec does not read"),
    ],
)
def test_uncertain_contradiction_is_a_warning(line: str, spec: dict[str, Any], text: str) -> None:
    job = spec_of(line, **spec)
    assert text in warnings(job)[0]
    assert all(rule.holds(job) for rule in COMMAND_RULES)


@pytest.mark.parametrize(
    ("line", "spec"),
    [
        ("torchrun --nnodes=2 --nproc_per_node=4 t.py --nnodes=1", {"gpu": 4}),
        ("torchrun --nnodes=1:4 --rdzv_backend=c10d --rdzv_endpoint=$(MASTER_ADDR) t.py", {}),
        ("torchrun --standalone --nnodes=1 --node_rank=0 t.py", {"replicas": 1}),
        ("torchrun --nnodes=$(PET_NNODES) --node_rank=$(NODE_RANK) t.py", {}),
        ("bash -c 'torchrun --nnodes=$PET_NNODES --node_rank=$NODE_RANK t.py'", {}),
        ("bash -c 'torchrun $FLAGS --nnodes=1 t.py'", {}),
        ("torchrun --unheard-of 3 --nnodes=1 t.py", {}),
        ("accelerate launch --config_file c.yaml t.py", {}),
        ("tune run recipe --config c", {}),
        ("torchrun --nproc_per_node=8 t.py", {"nprocPerNode": 8}),
        ("python t.py --nnodes=1 --standalone", {}),
        ("mpirun -np 2 bash -c 'python t.py --rank $RANK'", {"replicas": 1}),
        ("mpirun -np 16 --hostfile /hosts python t.py", {}),
        ("horovodrun -np 4 -H a:2,b:2 python t.py", {}),
        ("composer t.py", {"gpu": 8}),
        ("bash -c 'composer -n 8 --world_size 16 --node_rank $NODE_RANK t.py'", {"gpu": 8}),
        ("accelerate launch --num_machines 2 --num_processes 16 t.py", {"gpu": 8}),
        ("bash -c 'RANK=0 python prepare.py; torchrun t.py'", {}),
        ("bash -c 'MASTER_ADDR=localhost torchrun t.py'", {}),
        ("bash -c 'torchrun --nnodes=${PET_NNODES:-1} --node_rank=${NODE_RANK:-0} t.py'", {}),
        ("bash -c 'N=2; torchrun --nnodes=$N t.py'", {}),
        ("env MASTER_ADDR=localhost WORLD_SIZE=1 RANK=0 python t.py", {"replicas": 1}),
        ("bash -c 'exec \"$@\"' _ python t.py", {}),
        ("bash -c 'cat t.py | python' name", {}),
        ("bash -c '. ./run.sh' _ a b", {}),
        ("", {}),
    ],
)
def test_command_that_fits_has_no_contradiction(line: str, spec: dict[str, Any]) -> None:
    assert found_in(spec_of(line, **spec)) == []


def test_address_in_the_containers_env_is_a_contradiction() -> None:
    raw = written(["python", "t.py"])
    trainer = raw["template"]["spec"]["containers"][0]
    trainer["env"] = [{"name": "MASTER_ADDR", "value": "localhost"}]
    [(kind, one)] = found_in(DDPJobSpec.model_validate(raw))
    assert (kind, one.is_certain) == ("place", True)
    assert one.text == "MASTER_ADDR=localhost, but the job has 2 pods"


def test_launcher_below_inject_is_named() -> None:
    spec = DDPJobSpec.model_validate(written(["torchrun", "t.py"], launcher="inject"))
    [said] = violations("job", spec)
    assert said.endswith("or remove inject: the command starts torchrun")


def test_limit_that_is_no_number_is_left_to_its_own_rule() -> None:
    raw = written(["torchrun", "--nproc_per_node=2", "t.py"])
    raw["template"]["spec"]["containers"][0]["resources"] = gpus(gpu="0.5")
    spec = DDPJobSpec.model_validate(raw)
    assert next(rule.message for rule in SPEC_RULES if not rule.holds(spec)).startswith(
        "spec.template.spec.containers: write the trainer's GPU limits as whole numbers"
    )


_PROGRAMS = [(cel.compile(rule.cel), rule) for rule in COMMAND_RULES]
_texts = st.sampled_from(
    [
        *("torchrun", "/a/torchrun", "python", "-m torch.distributed.run", "bash -c", "sh -lc"),
        *("--nnodes=1", "--nnodes=2", "--nnodes 1", "--nnodes 4", "--standalone", "--tee 3"),
        *("--node_rank=0", "--node_rank=$RANK", "--node_rank=$(NODE_RANK)", "--node-rank 0"),
        *(
            "--nproc_per_node=4",
            "--nproc-per-node 2",
            "--master_addr=localhost",
            "--master_addr $A",
        ),
        *("$RANK", "localhost", "t.py", "2", "4"),
    ]
)


def _option(text: str) -> str:
    """Return what a command line has once: of a repeated option the last one counts."""
    return text.partition("=")[0].partition(" ")[0].replace("_", "-")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(_texts, min_size=1, max_size=6, unique_by=_option),
    st.sampled_from([["torchrun"], ["python", "-m", "torch.distributed.run"], []]),
    st.fixed_dictionaries(
        {"replicas": st.sampled_from([1, 2, 4])}, optional={"nprocPerNode": st.sampled_from([1, 4])}
    ),
    st.dictionaries(
        st.sampled_from(["gpu", "mig", "amd.com/gpu", "cpu"]), st.sampled_from([-1, 0, 2, "2", "x"])
    ),
)
@example(["--nproc_per_node=4"], ["torchrun"], {"replicas": 1}, {"gpu": 2, "amd.com/gpu": -1})
@example(["--nproc_per_node=4"], ["torchrun"], {"replicas": 1}, {"gpu": 2, "mig": 2})
def test_cel_refuses_nothing_that_python_admits(
    texts: list[str], first: list[str], fields: dict[str, int], limits: dict[str, int | str]
) -> None:
    words = [word for text in texts for word in text.split()]
    raw = written([*first, *words], **fields)
    raw["template"]["spec"]["containers"][0]["resources"] = gpus(**limits)
    spec = DDPJobSpec.model_validate(raw)
    completed = with_defaults({"spec": raw}, _SCHEMA)["spec"]
    for program, rule in _PROGRAMS:
        if not program.execute({"self": completed}):
            event("refused")
            assert not rule.holds(spec), rule.message
