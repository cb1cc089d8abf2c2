"""The code of the documentation's Python pages runs."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [(page.name, i, text) for page in sorted(DOCS.glob("python*.md"))
          for i, text in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M))]


@pytest.mark.parametrize("page,index,text", BLOCKS, ids=[f"{page}-{i}" for page, i, _ in BLOCKS])
def test_code_runs(page, index, text):
    if "deltarule.hf" in text:
        pytest.importorskip("transformers")
    exec(compile(text, f"{page}, block {index}", "exec"), {})


def test_pages_have_code():
    assert len(BLOCKS) >= 2
