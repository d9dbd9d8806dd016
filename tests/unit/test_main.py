import pytest
import yaml
from ddp_operator.__main__ import main


def test_the_crd_is_printed_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crd"]) == 0
    crd = yaml.safe_load(capsys.readouterr().out)
    assert crd["metadata"]["name"] == "ddpjobs.ddp-operator.io"


@pytest.mark.parametrize("arguments", [[], ["fly"], ["local"], ["run", "--nonsense"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 64
    assert "usage: python -m ddp_operator" in capsys.readouterr().err
