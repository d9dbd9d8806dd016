import pytest
from ddp_client.convert import ConversionError, of_command_line

from tests.unit.convert.examples import spec_of


def test_flags_of_the_group_become_fields() -> None:
    line = (
        "OMP_NUM_THREADS=1 torchrun --nnodes 2 --nproc_per_node=8 --node_rank 0 --master_addr "
        "10.0.0.1 --master-port 29600 --max-restarts 3 --tee 3 src/Train_me.py --nnodes 9"
    )
    found = of_command_line(line.split(), image="registry.example.com/a:1")
    assert found.manifest is not None
    assert found.manifest["metadata"] == {"name": "train-me"}
    assert spec_of(found) == {
        "replicas": 2,
        "nprocPerNode": 8,
        "masterPort": 29600,
        "restart": {"maxRestarts": 3},
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "trainer",
                        "image": "registry.example.com/a:1",
                        "command": [
                            "torchrun",
                            "--tee",
                            "3",
                            "src/Train_me.py",
                            "--nnodes",
                            "9",
                        ],
                        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
                    }
                ]
            }
        },
    }
    noted = {note.field for note in found.notes}
    assert {"--node-rank", "--master-addr", "--max-restarts", "--nproc-per-node"} <= noted


@pytest.mark.parametrize("launcher", ["torch.distributed.run", "torch.distributed.launch"])
def test_python_may_start_torchrun(launcher: str) -> None:
    line = ["python3", "-u", "-m", launcher, "--standalone", "-m", "pkg.train", "-x"]
    spec = spec_of(of_command_line(line))
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["python3", "-u", "-m", launcher, "-m", "pkg.train", "-x"]
    assert spec["nprocPerNode"] == 1


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("python train.py", "the command line: "),
        ("torchrun", "torchrun has no script to run"),
        ("torchrun --nnodes 2", "torchrun has no script to run"),
        ("torchrun --nnodes", "--nnodes: "),
        ("torchrun --unheard-of 3 train.py", "--unheard-of: "),
        ("torchrun --nnodes many train.py", "--nnodes: many is not"),
        ("torchrun --nnodes 0 train.py", "--nnodes: 0 pods"),
        ("torchrun --master-port x train.py", "--master-port: x is not"),
        ("torchrun --nproc-per-node 5000 train.py", "spec.nprocPerNode"),
    ],
)
def test_command_line_without_a_job_names_the_reason(line: str, named: str) -> None:
    with pytest.raises(ConversionError, match=named):
        of_command_line(line.split())
