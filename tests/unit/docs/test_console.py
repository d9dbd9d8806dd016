import pytest

from docs.console import commands, on_page_content


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("$ make demo\n", "make demo"),
        ("$ kubectl get ddp\nNAME   PHASE\na      Running\n$ ls\n", "kubectl get ddp\nls"),
        ("$ run a \\\n    --b 1\nstarted\n", "run a \\\n    --b 1"),
        ("kubectl apply -f a.yaml\n", ""),
    ],
)
def test_prompts_and_output_are_not_copied(text: str, copied: str) -> None:
    assert commands(text) == copied


def test_copied_text_is_an_attribute_of_the_block() -> None:
    code = '<span class="gp">$ </span>a<span> </span><span>"b"</span>&lt;c\n<span>out</span>\n'
    block = f'<div class="highlight"><pre><code>{code}</code></pre></div>'
    assert 'data-copy="a &quot;b&quot;&lt;c"' in on_page_content(block)


def test_block_without_prompts_is_unchanged() -> None:
    block = '<div class="highlight"><pre><code>a\n</code></pre></div>'
    assert on_page_content(block) == block
