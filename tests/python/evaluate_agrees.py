#!/usr/bin/env python3
"""`deltarule evaluate` against lm-evaluation-harness on the same items: choices, two contexts, last words, texts, answers.

The harness makes requests of items, tokens of requests and means of answers; the log-probabilities of ids come from the library,
through ctypes, so that what differs is what the two make of the items. Bytes are the tokens.

Usage: evaluate_agrees.py DELTARULE LIBRARY; exits with 77 where the package lm_eval is not installed.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
try:
    import lm_eval
    from lm_eval.api.model import TemplateLM
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as missing:
    print(f"skipped: {missing}; the Python package lm_eval holds evaluate to its numbers")
    sys.exit(77)

deltarule, library = sys.argv[1:]
START, MAX_LENGTH = 256, 32


class Layout(ctypes.Structure):
    _fields_ = [("sequences", ctypes.c_int64), ("rows", ctypes.c_int64), ("cu_seqlens", ctypes.c_void_p)]


class Batch(ctypes.Structure):
    _fields_ = [("layout", Layout), ("ids", ctypes.c_void_p), ("targets", ctypes.c_int64), ("positions", ctypes.c_void_p),
                ("labels", ctypes.c_void_p)]


class Model:
    """A model of a folder, and the log-probabilities of ids behind others."""

    def __init__(self, folder):
        self.c = ctypes.CDLL(library)
        self.c.dr_last_error.restype = ctypes.c_char_p
        self.session, backend, model = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("dr_backend_open", b"cpu", None, ctypes.byref(backend))
        self.call("dr_model_load", backend, folder.encode(), ctypes.byref(model))
        self.call("dr_session_create", model, ctypes.byref(self.session))

    def call(self, name, *arguments):
        if getattr(self.c, name)(*arguments) != 0:
            raise RuntimeError(self.c.dr_last_error().decode())

    def score(self, ids, first):
        """Sum over ids[first:], and whether each is the likeliest."""
        rows, targets = len(ids) - 1, len(ids) - first
        inputs, labels = (ctypes.c_int32 * rows)(*ids[:-1]), (ctypes.c_int32 * targets)(*ids[first:])
        positions = (ctypes.c_int64 * targets)(*range(first - 1, rows))
        batch = Batch(Layout(1, rows, None), ctypes.addressof(inputs), targets, ctypes.addressof(positions), ctypes.addressof(labels))
        loss, hits = ctypes.c_double(), ctypes.c_int64()
        self.call("dr_session_loss", self.session, ctypes.byref(batch), None, ctypes.byref(loss), ctypes.byref(hits), None, None)
        return -loss.value, hits.value == targets

    def likeliest(self, ids):
        logits = (ctypes.c_float * 257)()
        last, inputs = (ctypes.c_int64 * 1)(len(ids) - 1), (ctypes.c_int32 * len(ids))(*ids)
        batch = Batch(Layout(1, len(ids), None), ctypes.addressof(inputs), 1, ctypes.addressof(last), None)
        self.call("dr_session_logits", self.session, ctypes.byref(batch), None, self.float32, logits)
        return max(range(257), key=lambda i: (logits[i], -i))


class Harness(TemplateLM):
    def __init__(self, model):
        super().__init__()
        self.model = model

    @property
    def eot_token_id(self):
        return START

    def tok_encode(self, string, **_):
        return list(string.encode())

    def _loglikelihood_tokens(self, requests, **_):
        found = []
        for _, context, continuation in requests:
            begin = [] if context[:1] == [START] else [START]
            found.append(self.model.score(begin + context + continuation, len(begin) + len(context)))
        return found

    def loglikelihood_rolling(self, requests, **_):
        sums = []
        for request in requests:
            windows = map(make_disjoint_window, get_rolling_token_windows(self.tok_encode(request.args[0]), START, MAX_LENGTH, 1))
            sums.append(sum(self.model.score(context + predicted, len(context))[0] for context, predicted in windows))
        return sums

    def generate_until(self, requests, **_):
        texts = []
        for request in requests:
            ids, made = [START] + self.tok_encode(request.args[0]), []
            while len(made) < request.args[1]["max_gen_toks"] and made[-1:] != [10]:
                made.append(self.model.likeliest(ids + made))
            texts.append(bytes(i for i in made if i < 256 and i != 10).decode(errors="replace"))
        return texts


TASKS = {
    "piqa": ([{"goal": f"line {i}", "sol1": "of file a", "sol2": "is a matrix of many words", "label": i % 2} for i in range(12)],
             {"output_type": "multiple_choice", "doc_to_text": "Question: {{goal}}\nAnswer:", "doc_to_target": "label",
              "doc_to_choice": "{{[sol1, sol2]}}"}, []),
    "arc": ([{"question": f"line {i} ", "choices": {"text": ["of é", "file b: the state", "zz"], "label": ["A", "B", "C"]},
              "answerKey": "ABC"[i % 3]} for i in range(9)],
            {"output_type": "multiple_choice", "doc_to_text": "Question: {{question}}\nAnswer:",
             "doc_to_target": "{{choices.label.index(answerKey)}}", "doc_to_choice": "{{choices.text}}"}, []),
    "lambada": ([{"text": f"line {i} of file {c}: the state is a {w}"} for i, c, w in
                 [(1, "a", "matrix"), (2, "b", "matrix"), (3, "c", "vector"), (40, "d", "matrix")]],
                {"output_type": "loglikelihood", "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
                 "doc_to_target": "{{' '+text.split(' ')[-1]}}"}, ["--format", "lambada"]),
    "rolling": ([{"text": f"  line {i} of file a:\n the state  is a matrix. " * (i + 1)} for i in range(4)],
                {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "text"},
                ["--format", "rolling", "--max-length", str(MAX_LENGTH)]),
    "cloze": ([{"text": f"line {i} of file a\nline {i} of file", "value": v} for i, v in [(1, "STATE"), (2, "zebra"), (3, "a")]],
              {"output_type": "generate_until", "doc_to_text": "text", "doc_to_target": "value",
               "generation_kwargs": {"until": ["\n"], "max_gen_toks": 24, "do_sample": False}}, ["--tokens", "24"]),
}
METRICS = {
    "multiple_choice": {"acc": "accuracy", "acc_norm": "accuracy_normalized"},
    "loglikelihood": {"acc": "accuracy", "perplexity": "perplexity"},
    "loglikelihood_rolling": {"word_perplexity": "word_perplexity", "byte_perplexity": "byte_perplexity", "bits_per_byte": "bits_per_byte"},
    "generate_until": {},
}


def run(folder, work, model):
    worst = 0
    for name, (items, task, flags) in TASKS.items():
        path = os.path.join(work, name + ".jsonl")
        with open(path, "w") as file:
            file.writelines(json.dumps(item) + "\n" for item in items)
        *lines, result = [json.loads(line) for line in
                          subprocess.run([deltarule, "evaluate", folder, path, "--items", "--json", *flags], check=True,
                                         capture_output=True, text=True).stdout.splitlines()]
        metrics = METRICS[task["output_type"]]
        config = {"task": "own_" + name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": path}}, "test_split": "test",
                  **task, "metric_list": [{"metric": metric} for metric in metrics] or [{"metric": "exact_match"}]}
        told = lm_eval.simple_evaluate(model=Harness(model), tasks=[config], task_manager=TaskManager(), log_samples=True,
                                       bootstrap_iters=0, verbosity="ERROR")
        for metric, ours in metrics.items():
            theirs = told["results"]["own_" + name][metric + ",none"]
            worst = max(worst, abs(theirs / result[ours] - 1) if result[ours] else abs(theirs))
            assert abs(theirs - result[ours]) <= 1e-6 * max(1, abs(theirs)), (name, metric, theirs, result[ours])
        if not metrics:
            samples = sorted(told["samples"]["own_" + name], key=lambda sample: sample["doc_id"])
            for sample, line, item in zip(samples, lines, items, strict=True):
                text = sample["resps"][0][0]
                assert text == line["text"], (name, text, line)
                assert line["contained"] == (item["value"].lower() in text.lower()), line
        print(f"{name}: {len(items)} items agree")
    print(f"largest relative difference of a mean: {worst:.1e}")


def main():
    with tempfile.TemporaryDirectory() as work:
        os.environ["HF_HOME"] = work
        os.mkdir(os.path.join(work, "corpus"))
        with open(os.path.join(work, "corpus", "a.txt"), "w") as file:
            file.writelines(f"line {i} of file {'abcdef'[i % 6]}: the state is a matrix\n" for i in range(1800))
        folder = os.path.join(work, "run")
        subprocess.run([deltarule, "train", "--corpus", os.path.join(work, "corpus"), "--hidden", "16", "--layers", "1", "--heads", "1",
                        "--intermediate", "16", "--batch", "4", "--seq-len", "64", "--steps", "200", "--threads", "1", "--out", folder],
                       check=True, capture_output=True)
        model = Model(folder)
        run(folder, work, model)


Model.float32 = 0
main()
