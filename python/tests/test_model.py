"""Models and tokenizers of the C library in Python: what they refuse, and that they may outlive Python's own end."""

import os
import subprocess
import sys

import numpy as np
import pytest

from deltarule.model import Model
from deltarule.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model") / "run"
    subprocess.run([os.environ["DELTARULE_COMMAND"], "train", "--task", "parity", "--hidden", "16", "--layers", "1", "--heads", "1", "--steps",
                    "1", "--batch", "2", "--held-out", "2", "--out", made], check=True, stdout=subprocess.DEVNULL)
    return made


@pytest.mark.parametrize("sequences, kind, words", [
    ([1, 2, 1], TypeError, "must have one axis"), ([[[1, 2]]], TypeError, "must have one axis"),
    ([[1.5, 2]], TypeError, "whole numbers, not float64"), ("ab", TypeError, "whole numbers"), ([["1"]], TypeError, "whole numbers"),
    ([[True]], TypeError, "whole numbers, not bool"), ([[2**32 + 1]], ValueError, "from -2.31 to 2.31 - 1, not 4294967297"),
    ([np.array([2**32 + 1])], ValueError, "from -2.31"), ([[2**70]], TypeError, "whole numbers, not object"),
    ([[99]], ValueError, "id 0 is 99"), ([[-1]], ValueError, "id 0 is -1"), ([], ValueError, "at least one")])
def test_ids_that_are_none(folder, sequences, kind, words):
    model = Model(folder)
    with pytest.raises(kind, match=words):
        model.logits(sequences)


def test_ids_of_other_types(folder):
    model = Model(folder)
    for kind in (np.int8, np.uint16, np.int64, ">i4"):
        assert np.array_equal(model.logits([np.array([1, 2, 1], kind)])[0], model.logits([[1, 2, 1]])[0])


def test_labels_that_are_none(folder):
    with pytest.raises(TypeError, match="whole numbers"):
        Model(folder).score([[1, 2]], [[0]], [[0.5]])


def test_decode():
    tokenizer = Tokenizer()
    assert tokenizer.decode([72, 256, -1, 300, 105]) == "Hi"  # models have ids that are no token's
    with pytest.raises(ValueError, match="token id 4294967368 must be"):
        tokenizer.decode([72, 2**32 + 72])


def test_python_ends_before_a_model_does(folder):
    """Whatever Python takes away first at its end, nothing is said."""
    program = ("import sys, deltarule.model, deltarule.tokenizer\n"
               f"sys.kept = deltarule.model.Model({str(folder)!r}), deltarule.tokenizer.Tokenizer()\n"
               "for module in (deltarule.model, deltarule.tokenizer): module.lib = None\n")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
