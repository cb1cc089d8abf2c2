#!/usr/bin/env python3
"""lm-evaluation-harness as a client of `deltarule serve`: its model `local-completions` on tasks from local files, beside
`deltarule evaluate` on the same items and `deltarule score` on the same text.

Usage: serve_harness.py COMMAND; exit status 77: the package lm_eval, or what its client needs, is not installed.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

import served

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
try:
    import aiohttp, lm_eval, tenacity  # noqa: F401
    from lm_eval.tasks import TaskManager
except ImportError as missing:
    print(f"skipped: {missing}; the Python package lm_eval[api] is the client")
    sys.exit(77)

WINDOW = 30            # tokens that are predicted in one request of a rolling text
MAX_LENGTH = WINDOW + 2  # the client keeps a place for a token that is made, and one for what stands before the text
TASKS = {
    "choices": ([{"context": f"line {i} of file", "choices": ["a: the", "b: the state is a matrix", "zq"], "answer": i % 3}
                 for i in range(1, 13)],
                {"output_type": "multiple_choice", "doc_to_text": "{{context}}", "doc_to_choice": "{{choices}}", "doc_to_target": "answer",
                 "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}, []),
    "lambada": ([{"text": f"line {i} of file {c}: the state is a {w}"} for i, c, w in
                 [(1, "a", "matrix"), (2, "b", "matrix"), (3, "c", "vector"), (40, "d", "matrix")]],
                {"output_type": "loglikelihood", "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
                 "doc_to_target": "{{' '+text.split(' ')[-1]}}",
                 "metric_list": [{"metric": "acc"}, {"metric": "perplexity"}]}, ["--format", "lambada"]),
    "rolling": ([{"text": f"line {i} of file b: the state is a matrix, é\n" * i} for i in range(1, 8)],
                {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
                 "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")]},
                ["--format", "rolling", "--max-length", str(WINDOW)]),
    "made": ([{"text": f"line {i} of file", "value": value} for i, value in
              [(1, "a: the state is a matrix"), (2, "matrix"), (3, "no such word"), (17, "b: the state is a matrix")]],
             {"output_type": "generate_until", "doc_to_text": "{{text}}", "doc_to_target": "{{value}}",
              "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False},
              "metric_list": [{"metric": "exact_match"}]}, ["--tokens", "12"]),
}
NAMES = {"acc": "accuracy", "acc_norm": "accuracy_normalized"}


def ask(server, configs, max_length):
    arguments = dict(model="tiny", base_url=f"{server.url}/v1/completions", tokenizer_backend="remote", num_concurrent=4,
                     max_length=max_length, add_bos_token=False)
    return lm_eval.simple_evaluate(model="local-completions", model_args=arguments, tasks=configs, task_manager=TaskManager(),
                                   log_samples=True, bootstrap_iters=0, verbosity="ERROR")


def theirs(server, folder):
    """The harness's results of all tasks, and its samples."""
    for name, (items, task, _) in TASKS.items():
        with open(f"{folder}/{name}.jsonl", "w") as file:
            file.writelines(json.dumps(item) + "\n" for item in items)
    configs = [{"task": "own_" + name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{folder}/{name}.jsonl"}},
                "test_split": "test", **task} for name, (_, task, _) in TASKS.items()]
    told = ask(server, configs, MAX_LENGTH)
    return told["results"], told["samples"]


def ours(command, model, folder, name, flags):
    """The lines of the items and the result of `deltarule evaluate`."""
    said = subprocess.run([command, "evaluate", model, f"{folder}/{name}.jsonl", "--items", "--no-start", "--json", *flags], capture_output=True,
                          text=True)
    if said.returncode != 0:
        raise SystemExit(f"deltarule evaluate: {said.stderr}")
    *lines, result = [json.loads(line) for line in said.stdout.splitlines()]
    return lines, result


def check(command, model, folder, server):
    results, samples = theirs(server, folder)
    for name, (items, task, flags) in TASKS.items():
        lines, result = ours(command, model, folder, name, flags)
        told = results["own_" + name]
        for metric in (entry["metric"] for entry in task["metric_list"]):
            if name != "made":
                mine = result[NAMES.get(metric, metric)]
                assert math.isclose(told[metric + ",none"], mine, rel_tol=1e-5), (name, metric, told[metric + ",none"], mine)
        if name == "made":
            told = sorted(samples["own_" + name], key=lambda sample: sample["doc_id"])
            for sample, line in zip(told, lines, strict=True):
                assert sample["resps"][0][0] == line["text"], (sample["resps"], line)
        print(f"{name}: {len(items)} items agree", flush=True)
    check_score(command, model, folder, server)


def check_score(command, model, folder, server):
    """A text of one window has the bits a byte that `deltarule score` gives the file."""
    text = "line 17 of file b: the state is a matrix, naïve\n" * 2
    with open(folder + "/one.txt", "w") as file:
        file.write(text)
    with open(folder + "/one.jsonl", "w") as file:
        file.write(json.dumps({"text": text}) + "\n")
    score = json.loads(subprocess.run([command, "score", "--model", model, "--corpus", folder + "/one.txt", "--json"], check=True,
                                      capture_output=True, text=True).stdout)
    config = {"task": "own_one", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": folder + "/one.jsonl"}},
              "test_split": "test", **TASKS["rolling"][1]}
    told = ask(server, [config], 4096)["results"]["own_one"]["bits_per_byte,none"]
    assert math.isclose(told, score["bits_per_byte"], rel_tol=1e-5), (told, score)
    print("a rolling text has the bits per byte of deltarule score", flush=True)


def main():
    command = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = folder
        os.makedirs(folder + "/corpus")
        with open(folder + "/corpus/x.txt", "w") as file:
            file.writelines(f"line {i} of file {'abcdef'[i % 6]}: the state is a matrix\n" for i in range(1800))
        subprocess.run([command, "tokenizer", "train", "--corpus", folder + "/corpus", "--out", folder + "/tokenizer", "--size", "300"],
                       check=True, stdout=subprocess.DEVNULL)
        model = served.make_model(command, folder, sizes=["--tokenizer", folder + "/tokenizer"])
        with served.Server(command, model) as server:
            check(command, model, folder, server)
    print(f"lm_eval {lm_eval.__version__}: all is well")


main()
