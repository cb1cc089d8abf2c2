"""Tasks of lm-evaluation-harness over local files: both engines, `deltarule evaluate` and `deltarule score` give the same numbers."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: pip install lm_eval")

from deltarule import lm_eval as door
from deltarule.hf import DeltaruleConfig, DeltaruleForCausalLM

pytestmark = pytest.mark.slow

TASKS = {
    "local_choices": """
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}, {metric: acc_norm, aggregation: mean, higher_is_better: true}]
""",
    "local_last_word": """
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+text.split(' ')[-1]}}"
metric_list: [{metric: perplexity, aggregation: perplexity, higher_is_better: false}, {metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "local_rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}, {metric: byte_perplexity}, {metric: word_perplexity}]
""",
    "local_answers": """
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], do_sample: false, max_gen_toks: 12}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}
WORDS = "the quick brown fox jumps over the lazy dog and a cat sleeps under some old tree while rain falls on grey roofs".split()


def items(name):
    text = lambda i, n: " ".join(WORDS[(i * 7 + j * (i + 1)) % len(WORDS)] for j in range(n))
    for i in range(10):
        if name == "local_choices":
            yield {"context": text(i, 5), "choices": [text(i + 1, 2), text(i + 2, 1), text(i + 3, 4)], "answer": i % 3}
        elif name == "local_answers":
            yield {"prompt": text(i, 6), "answer": text(i, 1)}
        else:
            yield {"text": text(i, 6 + i)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("lm_eval")
    torch.manual_seed(0)
    model = DeltaruleForCausalLM(DeltaruleConfig(rule="gdn", vocabulary=257, hidden=32, heads=2, layers="gdn attention", intermediate=48))
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.1 * torch.randn_like(one))
    model.save_pretrained(place / "model")
    (place / "tasks").mkdir()
    for name, task in TASKS.items():
        (place / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in items(name)))
        (place / "tasks" / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {place / name}.jsonl}}}}\ntest_split: test\n"
            f"metadata: {{version: 1}}\n{task}")
    return place


def harness(place, engine, *more):
    out = place / f"{engine}{'-'.join(more)}.json"
    assert door.main(["--model", str(place / "model"), "--tasks", ",".join(TASKS), "--include_path", str(place / "tasks"), "--engine", engine,
                      "--output", str(out), *more]) == 0
    return {task: {key.split(",")[0]: value for key, value in found.items()} for task, found in json.loads(out.read_text()).items()}


def command(*words):
    return json.loads(subprocess.run([sys.executable, "-m", "deltarule", *map(str, words), "--json"], check=True, capture_output=True,
                                     text=True).stdout)


def test_same_numbers(place):
    c, hf = harness(place, "c"), harness(place, "hf", "--batch_size", "3")
    for task, found in c.items():
        for key, value in found.items():
            if isinstance(value, float) and "stderr" not in key:
                assert hf[task][key] == pytest.approx(value, rel=2e-5), (task, key)
    choices = command("evaluate", place / "model", place / "local_choices.jsonl")
    assert c["local_choices"]["acc"] == pytest.approx(choices["accuracy"])
    assert c["local_choices"]["acc_norm"] == pytest.approx(choices["accuracy_normalized"])
    words = command("evaluate", place / "model", place / "local_last_word.jsonl", "--format", "lambada")
    assert c["local_last_word"]["perplexity"] == pytest.approx(words["perplexity"], rel=1e-5)
    assert c["local_last_word"]["acc"] == pytest.approx(words["accuracy"])
    rolling = command("evaluate", place / "model", place / "local_rolling.jsonl", "--format", "rolling")
    for key in ("bits_per_byte", "byte_perplexity", "word_perplexity"):
        assert c["local_rolling"][key] == pytest.approx(rolling[key], rel=1e-5)
    answers = command("evaluate", place / "model", place / "local_answers.jsonl", "--tokens", "12")
    assert c["local_answers"]["exact_match"] == pytest.approx(answers["exact"])
    text = next(items("local_rolling"))["text"]
    (place / "text.txt").write_text(text)
    score = command("score", "--model", place / "model", "--corpus", place / "text.txt")
    lm = door.DeltaruleLM(place / "model")
    rolled = lm.loglikelihood_rolling([type("Request", (), {"args": (text,)})])
    assert -rolled[0] / len(text) == pytest.approx(score["loss"], rel=1e-5)


def test_windows(place):
    """With a bound on requests: as `deltarule evaluate --max-length`."""
    lm = [door.DeltaruleLM(place / "model", engine, max_length=16) for engine in ("c", "hf")]
    texts = [one["text"] for one in items("local_rolling")]
    requests = [type("Request", (), {"args": (text,)}) for text in texts]
    a, b = (one.loglikelihood_rolling(requests) for one in lm)
    assert a == pytest.approx(b, rel=2e-5)
    told = command("evaluate", place / "model", place / "local_rolling.jsonl", "--format", "rolling", "--max-length", "16")
    import math
    assert -sum(a) / sum(map(len, texts)) / math.log(2) == pytest.approx(told["bits_per_byte"], rel=1e-5)


def test_answers(place):
    lm = [door.DeltaruleLM(place / "model", engine) for engine in ("c", "hf")]
    requests = [type("Request", (), {"args": (one["prompt"], {"until": [" "], "max_gen_toks": 9})}) for one in items("local_answers")]
    a, b = (one.generate_until(requests) for one in lm)
    assert a == b and all(" " not in one for one in a)
    module = door.DeltaruleLM(DeltaruleForCausalLM.from_pretrained(place / "model"))  # in a program, without a folder
    assert module.generate_until(requests) == a
    with pytest.raises(NotImplementedError, match="greedy"):
        lm[0].generate_until([type("Request", (), {"args": ("a", {"do_sample": True})})])


def test_refusals(place, capsys):
    assert door.main(["--model", str(place / "nowhere"), "--tasks", "local_choices"]) == 1
    assert "nowhere" in capsys.readouterr().err
    with pytest.raises(ValueError, match="engine is 'rust'"):
        door.DeltaruleLM(place / "model", "rust")
