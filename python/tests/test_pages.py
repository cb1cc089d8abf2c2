"""The code of the documentation's Python pages runs."""

import re
from pathlib import Path

import pytest

pytest.importorskip("numpy")
DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [(page.name, i, text) for page in sorted(DOCS.glob("python*.md"))
          for i, text in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M))]
SLOW = {"python-lm-eval.md", "python-fla.md"}  # which import the harness, or all of flash-linear-attention


@pytest.mark.parametrize("page,index,text", [pytest.param(*block, id=f"{block[0]}-{block[1]}", marks=[pytest.mark.slow] if block[0] in SLOW else [])
                                             for block in BLOCKS])
def test_code_runs(page, index, text):
    needed = {"torch": "torch", "deltarule.hf": "transformers", "lm_eval": "lm_eval"}
    for word, module in needed.items():
        if word in text:
            pytest.importorskip(module, reason=f"{module} is not installed")
    exec(compile(text, f"{page}, block {index}", "exec"), {})


def test_every_page_has_code():
    assert {page.name for page in DOCS.glob("python*.md")} == {page for page, _, _ in BLOCKS}
