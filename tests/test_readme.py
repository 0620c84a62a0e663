"""Every example in the README runs, and prints what the README says it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@attrs.frozen
class Block:
    """A fenced block."""

    language: str
    text: str


BLOCKS = [Block(*found) for found in FENCE.findall(README)]
FRAGMENTS = [
    block.text
    for block in BLOCKS
    if block.language == "python" and block.text not in [path.read_text() for path in EXAMPLES]
]
"""The snippets that are no example of their own, and go on from the quickstart."""

every_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)


def run(source: str, directory: Path) -> str:
    """What a program prints, run in an empty directory with the package in reach."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-c", source],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_readme_has_snippets() -> None:
    """There are examples, and snippets beside them: the tests below run something."""
    assert {"quickstart.py"} <= {path.name for path in EXAMPLES}
    assert FRAGMENTS


@every_example
def test_an_example_prints_what_the_readme_shows(path: Path, tmp_path: Path) -> None:
    """Each file in ``examples`` is in the README word for word; what it prints is in the text block that follows."""
    source = path.read_text()
    (position,) = [number for number, block in enumerate(BLOCKS) if block == Block("python", source)]
    following = BLOCKS[position + 1]
    assert following.language == "text"
    assert run(source, tmp_path) == following.text


@pytest.mark.parametrize("fragment", range(len(FRAGMENTS)))
def test_a_snippet_goes_on_from_the_quickstart(fragment: int, tmp_path: Path) -> None:
    """Each other snippet in the README runs after the quickstart; ``shard`` is the reader's own pass."""
    quickstart = (ROOT / "examples" / "quickstart.py").read_text()
    run(f"{quickstart}\n\ndef shard(*nodes): pass\n\n{FRAGMENTS[fragment]}", tmp_path)


def test_the_first_loop_shards_every_trainable_parameter(tmp_path: Path) -> None:
    """The loop that the README shows calls the pass with two nodes for each parameter that has a gradient."""
    quickstart = (ROOT / "examples" / "quickstart.py").read_text()
    (loop,) = [text for text in FRAGMENTS if "shard(" in text]
    printed = run(f"{quickstart}\n\ndef shard(one, other): print(one.op, other.op)\n\nprint()\n{loop}", tmp_path)
    assert printed.partition("\n\n")[2].splitlines() == ["placeholder call_function"] * 26


def test_every_file_that_the_readme_links_to_is_there() -> None:
    """Links in the README lead to files of the repository."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
