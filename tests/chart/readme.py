"""Commands that the chart's README tells its readers to type."""

from tools.chart.generated import CHART


def take_over() -> list[list[str]]:
    """Return the commands that hand over an installation of kubectl, without `kubectl`."""
    section = (CHART / "README.md").read_text().partition("\n## Take over from kubectl\n")[2]
    block = section.partition("```console\n")[2].partition("```")[0]
    *prepare, install = (line.split() for line in block.splitlines())
    assert install[:4] == ["helm", "install", "ddp-operator", "manifests/chart"]
    assert all(words[0] == "kubectl" for words in prepare)
    return [words[1:] for words in prepare]
