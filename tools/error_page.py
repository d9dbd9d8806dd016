"""`python -m tools.error_page`: writes the reference page of known errors from their table."""

from collections.abc import Iterator
from pathlib import Path

from ddp_protocol.error_texts import TOPICS, Known

PATH = Path("docs/reference/errors.md")
"""From the root of the repository."""
_INTRODUCTION = """\
<!-- written by `make generate` from protocol/ddp_protocol/error_texts -->

# Errors and what to do

These are texts of torch, NCCL, CUDA, storage, the kubelet and others that end trainings.
`kubectl ddp why` looks for them in the message of the failed pod, and prints what they mean and
what to do.

Some texts prove who caused a failure. For these texts the page adds what they *count as*, and
[What a failure is](failures.md#what-a-failure-is) explains what follows. All other
texts change no decision of the operator. Pods that fail or wait also have a reason, such as
`OOMKilled`: see [Reasons](reasons.md).

## Your own remedies

Some errors are of your own cluster or code. Write what to do about them into a ConfigMap
`ddp-remedies` in the namespace of the jobs. In each key, the first line is a text to look for, and
the lines after it are the remedy. `*` stands for any characters of a line:

```yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: ddp-remedies, namespace: research}
data:
  vault: |
    vault: token * has expired
    Run vault login, then create the Secret vault-token again.
```

`kubectl ddp why` and the Python client's `why()` look for these texts in the messages of failed and
waiting pods, and put your remedies before their own. They need the right to read the ConfigMap. At
most 50 keys are read. A text has 5 to 200 characters and at most four `*`, a remedy has at most 400
characters. Entries that are ignored are named.
"""


def page() -> str:
    """Return the page in Markdown."""
    parts = [_INTRODUCTION]
    for topic, texts in TOPICS.items():
        parts.append(f"## {topic}\n")
        parts += [line for known in texts for line in _lines(known)]
    return "\n".join(parts)


def _lines(known: Known) -> Iterator[str]:
    yield f"```text\n{known.example}\n```\n"
    counts, _, _ = known.class_.value.partition(":")
    end = f" *It counts as* {counts}." if counts else ""
    yield f"{_sentence(known.meaning)} *What to do:* {_escaped(known.remedy)}.{end}\n"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{_escaped(text[1:])}."


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;")


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
