"""`python -m tools.prose [PATH...]`: checks that docs, docstrings and messages read easily.

Two rules. Words and phrases that readers have to read twice (`MARKERS`) may appear 1.5 times in
1,000 words; other projects' documentation has 0.3 to 1.3. No sentence in docs is longer than 35
words. Comments are checked too; code between backticks and in blocks is not prose.

Of docs it also counts words that connect facts (`CONNECTIVES`) and rows of tables. Fewer than
`CONNECTIVES_PER_THOUSAND` or more than `TABLE_ROWS_PERCENT` in all of docs is an error.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROSE = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
    *("docs", "manifests", "skills", "tests"),
    *("protocol/ddp_protocol", "operator/ddp_operator", "client/ddp_client"),
    "trainer-image/ddp_trainer",
    *("trainer-image/examples", "tools"),
)
"""Files and folders that are checked, from the root of the repository."""

PER_THOUSAND = 1.5
SENTENCE_WORDS = 35

MARKERS: dict[str, str] = tomllib.loads(
    (Path(__file__).parent / "prose_words.toml").read_text(encoding="utf-8")
)
"""A pattern of words that slow readers down, and what to write instead."""
OPENING = re.compile(r"(?:What|Whether|Whatever|Whoever|That|Those) ", re.ASCII)
"""How no docstring begins: start with a verb, or a noun that says what the thing is."""

TABLE_ROWS_PERCENT = 6.0
"""Largest share of lines in docs that are rows of tables."""

CONNECTIVES = re.compile(
    r"\b(?:because|so that|for example|instead|by default|otherwise|however|therefore|since"
    r"|although|though|unless|thus|as a result|for this reason|that is why|for instance"
    r"|in addition|besides|meanwhile)\b",
    re.I,
)
"""Words that say why, or what follows."""

CONNECTIVES_PER_THOUSAND = 10.0
"""Fewest connectives in 1,000 words of docs; documentation that reads well has 10 to 15."""

_MARKER = re.compile(r"\b(?:" + "|".join(f"({each})" for each in MARKERS) + r")(?!\w)", re.I)
"""A group for each pattern, in the order of `MARKERS`."""
_CODE = re.compile(r"``[^`]*``|`[^`]*`", re.DOTALL)
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2[ \t]*$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\([^)]*\)|\]\[[^\]]*\]|<[^>\s][^>]*>")
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+>|#]|\d+\.)\s?)|\|")
_SENTENCE = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9])|(?<=:)\s+(?=[A-Z])")
_WORD = re.compile(r"[A-Za-z0-9][\w'./%-]*")
_LEAST_WORDS_OF_A_MESSAGE = 4


@dataclass(frozen=True)
class Passage:
    """A piece of prose in a file."""

    path: Path
    line: int
    text: str
    """Without code: a span between backticks is one word."""
    kind: str
    """`docs`, `docstring`, `comment` or `message`."""


@dataclass
class Count:
    """The totals of one kind of prose in one folder."""

    words: int = 0
    markers: list[str] = field(default_factory=list)
    """Each as `file:line: "words" (write instead)`."""

    connectives: int = 0
    lines: int = 0
    rows: int = 0
    """Rows of tables."""

    @property
    def per_thousand(self) -> float:
        """Return markers per 1,000 words."""
        return 1000 * len(self.markers) / max(self.words, 1)

    @property
    def too_many(self) -> bool:
        """Tell whether the limit is exceeded; a single marker never exceeds it."""
        return len(self.markers) > max(1.0, PER_THOUSAND * self.words / 1000)


def passages(path: Path) -> Iterator[Passage]:
    """Yield the prose of a Markdown, Python or YAML file; of YAML, the comments."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        # The same number of lines, so that line numbers hold.
        text = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), source)
        yield Passage(path, 1, _without_code(text), "docs")
    elif path.suffix == ".py":
        yield from _of_python(path, source)
    else:
        for number, line in enumerate(source.splitlines(), 1):
            if comment := re.match(r"\s*#+ ?(.*)", line):
                yield Passage(path, number, _without_code(comment[1]), "comment")


def _of_python(path: Path, source: str) -> Iterator[Passage]:
    tree = ast.parse(source)
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    standalone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in inside:
                continue
            text = node.value
        else:
            continue
        kind = "docstring" if id(node) in standalone else "message"
        if kind == "docstring" or len(text.split()) >= _LEAST_WORDS_OF_A_MESSAGE:
            yield Passage(path, node.lineno, _without_code(text), kind)
    comments = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    for token in comments:
        yield Passage(path, token.start[0], _without_code(token.string.lstrip("#: ")), "comment")


def _without_code(text: str) -> str:
    return _CODE.sub(lambda code: "X" + "\n" * code[0].count("\n"), text)


def markers(passage: Passage) -> Iterator[tuple[int, str]]:
    """Yield line and words of each marker in a passage."""
    text = passage.text
    if passage.kind == "docstring" and (opening := OPENING.match(text.lstrip())):
        yield passage.line, f'"{opening[0]}…" (begin with a verb or a noun)'
    for found in _MARKER.finditer(text):
        assert found.lastindex is not None
        instead = [*MARKERS.values()][found.lastindex - 1]
        yield passage.line + text.count("\n", 0, found.start()), f'"{found[0]}" ({instead})'


def long_sentences(passage: Passage) -> Iterator[tuple[int, int, str]]:
    """Yield line, number of words and beginning of each sentence that is too long."""
    text = _LINK.sub(lambda link: "]" + "\n" * link[0].count("\n"), passage.text)
    start = 0
    for block_end in [*(found.start() for found in _BLOCK.finditer(text)), len(text)]:
        block = text[start:block_end]
        at = start
        for sentence in _SENTENCE.split(block):
            words = _WORD.findall(sentence)
            if len(words) > SENTENCE_WORDS:
                line = passage.line + text.count("\n", 0, text.index(sentence.strip(), at))
                yield line, len(words), " ".join(words[:8])
            at += len(sentence)
        start = block_end


def table_rows(text: str) -> int:
    """Return the number of lines of a Markdown page that are rows of tables."""
    return sum(line.startswith("|") for line in text.splitlines())


def _files(asked: list[Path]) -> list[Path]:
    chosen = asked or [ROOT / name for name in PROSE]
    return sorted(
        path
        for root in chosen
        if root.exists()
        for path in ([root] if root.is_file() else root.rglob("*"))
        if path.suffix in {".md", ".py", ".yaml"} and "__pycache__" not in path.parts
    )


def _folder(path: Path) -> str:
    """Return the folder that a file is counted in: `docs/how-to`, `operator/ddp_operator/job`."""
    parts = path.relative_to(ROOT).parts[:-1]
    return "/".join(parts[:3]) or "."


def docs_summary(counts: dict[tuple[str, str], Count]) -> tuple[str, list[str]]:
    """Return a line about the pages in docs, and a line for each limit that they exceed."""
    pages = [count for (folder, _), count in counts.items() if folder.split("/")[0] == "docs"]
    percent = 100 * sum(page.rows for page in pages) / max(sum(page.lines for page in pages), 1)
    words = sum(page.words for page in pages if page.lines)
    connectives = 1000 * sum(page.connectives for page in pages) / max(words, 1)
    line = (
        f"docs: {connectives:.1f} connectives per 1,000 words, "
        f"{percent:.1f} % of lines are rows of tables"
    )
    errors = []
    if connectives < CONNECTIVES_PER_THOUSAND:
        errors.append(f"docs: too few connectives; write at least {CONNECTIVES_PER_THOUSAND:g}")
    if percent > TABLE_ROWS_PERCENT:
        errors.append(f"docs: at most {TABLE_ROWS_PERCENT:g} % of lines may be rows of tables")
    return line, errors


def main() -> int:
    """Print counts and findings; return 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="default: everything")
    parser.add_argument("--all", action="store_true", help="list findings below the limit too")
    asked = parser.parse_args()
    counts: dict[tuple[str, str], Count] = defaultdict(Count)
    long = []
    for path in _files([path.resolve() for path in asked.paths]):
        name = path.relative_to(ROOT)
        for passage in passages(path):
            count = counts[_folder(path), passage.kind]
            count.words += len(_WORD.findall(passage.text))
            count.markers += [f"{name}:{line}: {words}" for line, words in markers(passage)]
            if passage.kind == "docs":
                count.connectives += len(CONNECTIVES.findall(passage.text))
                count.lines += passage.text.count("\n")
                count.rows += table_rows(passage.text)
                long += [
                    f"{name}:{line}: {words} words, at most {SENTENCE_WORDS}: {beginning}…"
                    for line, words, beginning in long_sentences(passage)
                ]
    for _, count in sorted(counts.items()):
        if asked.all or asked.paths or count.too_many:
            print("\n".join(count.markers))
    print("\n".join(long))
    for (folder, kind), count in sorted(counts.items()):
        verdict = "  too many" if count.too_many else ""
        print(f"{folder:36} {kind:10} {count.words:6} words {count.per_thousand:5.1f}{verdict}")
    words = sum(count.words for count in counts.values())
    found = sum(len(count.markers) for count in counts.values())
    print(f"all: {words} words, {1000 * found / max(words, 1):.1f} markers per 1,000")
    line, errors = docs_summary(counts)
    if asked.paths:  # the limits are for all pages together
        errors = []
    print("\n".join([line, *errors]))
    return 1 if long or errors or any(count.too_many for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
