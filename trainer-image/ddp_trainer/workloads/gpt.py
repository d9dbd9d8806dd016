"""A small GPT that learns to write Python code, byte by byte.

Its text is the source of Python's standard library: real text on every machine, so no download.
"""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.workloads.base import Samples, Workload, at_least

_BYTES = 256
"""Every byte is a token."""
_TEST_FRACTION = 0.1
_INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights, as in GPT-2."""


def load(
    *,
    layers: int = 2,
    heads: int = 4,
    width: int = 64,
    context: int = 64,
    dropout: float = 0.0,
    text_bytes: int = 1_000_000,
    data: Path | None = None,
) -> Workload:
    """Cut the text into windows of `context` bytes; the last tenth are test samples.

    `width`: size of a token's vector, a multiple of `heads`. `text_bytes`: how much text to use.
    `data`: a file or a folder of text; None: the standard library's modules, one after another.
    """
    at_least(1, layers=layers, heads=heads, width=width, context=context, text_bytes=text_bytes)
    if width % heads:
        raise ConfigurationError(f"--workload-option width={width}: set it to a multiple of heads")
    text = read_text(data, most=text_bytes)
    inputs, targets = (part.unfold(0, context, context) for part in (text[:-1], text[1:]))
    tests = int(len(inputs) * _TEST_FRACTION)
    if not tests:
        raise ConfigurationError(
            f"{len(text)} bytes of text are too few for --workload-option context={context}: "
            "lower it, or set --workload-option data to more text"
        )
    return Workload(
        train=Samples(inputs=inputs[:-tests], targets=targets[:-tests]),
        test=Samples(inputs=inputs[-tests:], targets=targets[-tests:]),
        model=functools.partial(
            GPT, layers=layers, heads=heads, width=width, context=context, dropout=dropout
        ),
        loss=_loss,
        score=_score,
    )


def read_text(data: Path | None, *, most: int) -> Tensor:
    """Return the first `most` bytes of the text, as uint8.

    Raises:
        ConfigurationError: it cannot be read.
    """
    text = bytearray()
    try:
        for path in _files(data) if data is not None else sorted(_library().glob("*.py")):
            if len(text) >= most:
                break
            text += path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"--workload-option data: {error}: name a file that can be read"
        ) from error
    if not text:
        raise ConfigurationError(
            f"there is no text in {data or _library()}: set --workload-option data to a text file"
        )
    return torch.frombuffer(text, dtype=torch.uint8)[:most]


def _files(data: Path) -> list[Path]:
    return sorted(p for p in data.rglob("*") if p.is_file()) if data.is_dir() else [data]


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


class GPT(nn.Module):
    """Bytes (batch, time) → logits of the byte that follows each (batch, time, 256)."""

    def __init__(
        self, *, layers: int, heads: int, width: int, context: int, dropout: float
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(_BYTES, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(Block(heads=heads, width=width, dropout=dropout) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _BYTES, bias=False)
        self.apply(_initialise)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        vectors = self.dropout(self.token(tokens.long()) + self.position(positions))
        logits: Tensor = self.head(self.norm(self.blocks(vectors)))
        return logits


class Block(nn.Module):
    """One layer: attention and a perceptron, each with a residual connection."""

    def __init__(self, *, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(heads=heads, width=width, dropout=dropout)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """(batch, time, width) → the same."""
        vectors = vectors + self.attention(self.attention_norm(vectors))
        return vectors + self.mlp(vectors)  # type: ignore[no-any-return]


class CausalSelfAttention(nn.Module):
    """Attention of each token to itself and to those before it."""

    def __init__(self, *, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, vectors: Tensor) -> Tensor:
        """(batch, time, width) → the same."""
        batch, time, width = vectors.shape
        query, key, value = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.query_key_value(vectors).chunk(3, dim=-1)
        )
        dropout = self.dropout.p if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        joined = mixed.transpose(1, 2).reshape(batch, time, width)
        result: Tensor = self.dropout(self.output(joined))
        return result


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_INITIAL_DEVIATION)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long())


def _score(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the share of correct bytes in each window."""
    return (logits.argmax(dim=-1) == targets).float().mean(dim=-1)
