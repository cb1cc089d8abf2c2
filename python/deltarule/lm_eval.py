"""Models for EleutherAI's lm-evaluation-harness, over a folder by the C library, or over a module of `deltarule.hf`.

    python -m deltarule.lm_eval --model DIR --tasks arc_easy,lambada_openai [--include_path DIR] [--engine c|hf]

Requests are asked as `deltarule evaluate` asks them (docs/evaluation.md): the token that begins a document stands before every
text, blanks that end a context belong to the continuation, and a text without a bound on its length is read whole. Numbers are
the same from both engines up to rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, List, Optional, Sequence, Tuple

try:
    from lm_eval.api.model import TemplateLM
except ImportError as reason:
    raise ImportError("deltarule.lm_eval needs lm-evaluation-harness: pip install lm_eval") from reason

from .model import Model
from .tokenizer import Tokenizer

__all__ = ["DeltaruleLM"]


class DeltaruleLM(TemplateLM):
    """A model of the harness.

    Args:
        model: a folder; or a `DeltaruleForCausalLM`, with `tokenizer`.
        engine: of a folder: "c", or "hf" for PyTorch.
        tokenizer: a folder with tokenizer.json, or a Tokenizer; None: that of the model's folder, else bytes.
        batch_size: requests a call. max_length: tokens of a request, contexts lose their beginnings; None: no bound.
        max_gen_toks: of an answer, where a task does not say. device: of engine "hf".
    """

    def __init__(self, model: Any, engine: str = "c", tokenizer: Any = None, batch_size: int = 8, max_length: Optional[int] = None,
                 max_gen_toks: int = 48, device: str = "cpu"):
        super().__init__()
        if engine not in ("c", "hf"):
            raise ValueError(f"engine is {engine!r}; it is 'c' or 'hf'")
        folder = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
        if tokenizer is None and folder is not None and os.path.exists(os.path.join(folder, "tokenizer.json")):
            tokenizer = folder
        self._tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer)
        if folder is None:
            self._engine: Any = _Torch(model)
        elif engine == "c":
            self._engine = _C(folder)
        else:
            from .hf import DeltaruleForCausalLM
            self._engine = _Torch(DeltaruleForCausalLM.from_pretrained(folder).to(device))
        if self._engine.vocabulary < self._tokenizer.size:
            raise ValueError(f"the model has a vocabulary of {self._engine.vocabulary} ids, its tokenizer has {self._tokenizer.size}: name "
                             "the tokenizer that it was trained with")
        self.batch_size, self.max_length, self.max_gen_toks = int(batch_size), max_length, max_gen_toks

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.eos if self._tokenizer.eos >= 0 else self._tokenizer.start

    @property
    def prefix_token_id(self) -> int:
        return self._tokenizer.start

    @property
    def tokenizer_name(self) -> str:
        return "deltarule"

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None, **_: Any) -> List[int]:
        ids = self._tokenizer.encode(string)
        return ids if add_special_tokens is False else [self._tokenizer.start, *ids]

    def _scores(self, asked: Sequence[Tuple[List[int], List[int]]]) -> List[Tuple[float, bool]]:
        """Of pairs (context, continuation) of ids, the longest first and so many at once, in their own order."""
        found: List[Any] = [None] * len(asked)
        order = sorted(range(len(asked)), key=lambda i: -len(asked[i][0]) - len(asked[i][1]))
        for begin in range(0, len(order), self.batch_size):
            some = order[begin:begin + self.batch_size]
            sequences, positions, labels = [], [], []
            for i in some:
                context, continuation = asked[i]
                whole = [*context, *continuation]
                if self.max_length and len(whole) > self.max_length + 1:
                    whole = whole[-(self.max_length + 1):]
                count = min(len(continuation), len(whole) - 1)
                sequences.append(whole[:-1])
                positions.append(range(len(whole) - 1 - count, len(whole) - 1))
                labels.append(whole[len(whole) - count:])
            for i, one in zip(some, self._engine.score(sequences, positions, labels)):
                found[i] = (float(one[0].sum()), bool(one[1].all()))
        return found

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **_: Any) -> List[Tuple[float, bool]]:
        pairs = []
        for _, context, continuation in requests:
            if not continuation:  # context and continuation end in one token
                context, continuation = context[:-1], context[-1:]
            pairs.append((context, continuation))
        return self._scores(pairs)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> List[float]:
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
        windows, of = [], []
        for i, request in enumerate(requests):
            ids = self.tok_encode(request.args[0], False)
            if not self.max_length:
                parts = [([self.prefix_token_id], ids)] if ids else []
            else:
                parts = list(map(make_disjoint_window, get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1)))
            windows += parts
            of += [i] * len(parts)
        sums = [0.0] * len(requests)
        for i, (total, _) in zip(of, self._scores(windows)):
            sums[i] += total
        return sums

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> List[str]:
        made = []
        for request in requests:
            context, options = request.args
            until = options.get("until") or []
            until = [until] if isinstance(until, str) else list(until)
            if options.get("do_sample") or options.get("temperature"):
                raise NotImplementedError("answers are greedy: take do_sample and temperature out of the task's generation_kwargs")
            most = options.get("max_gen_toks", self.max_gen_toks)
            ids = self.tok_encode(context)
            if self.max_length:
                ids = ids[-max(self.max_length - most, 1):]
            made.append(self._answer(ids, most, until))
        return made

    def _answer(self, ids: List[int], most: int, until: Sequence[str]) -> str:
        ends = {self._tokenizer.start, self.eot_token_id}
        answer: List[int] = []
        for token in self._engine.generate(ids, most):
            if token in ends:
                break
            answer.append(token)
            text = self._tokenizer.decode(answer)
            cuts = [text.find(stop) for stop in until if stop and stop in text]
            if cuts:
                return text[:min(cuts)]
        return self._tokenizer.decode(answer)


class _C:
    def __init__(self, folder: str):
        self._model = Model(folder)
        self.vocabulary, self.score = self._model.vocabulary, self._model.score

    def generate(self, ids: Sequence[int], most: int):
        return self._model.tokens(ids, most)


class _Torch:
    """The same of a module: packed sequences, states from token to token."""

    def __init__(self, model: Any):
        self._model = model.eval()
        self.vocabulary = model.config.vocabulary

    def score(self, sequences: Any, positions: Any, labels: Any):
        import torch
        device = self._model.device
        cu = torch.tensor([0, *[len(one) for one in sequences]]).cumsum(0).to(device)
        ids = torch.tensor([id for one in sequences for id in one], device=device)[None]
        at = torch.tensor([begin + p for begin, some in zip(cu.tolist(), positions) for p in some], device=device)
        wanted = torch.tensor([id for one in labels for id in one], device=device)
        with torch.no_grad():
            logits = self._model(ids, cu_seqlens=cu, use_cache=False, logits_to_keep=at).logits[0].double()
            logprobs = torch.log_softmax(logits, -1).gather(-1, wanted[:, None])[:, 0]
            greedy = logits.argmax(-1) == wanted
        counts = [len(one) for one in labels]
        return list(zip(logprobs.split(counts), greedy.split(counts)))

    def generate(self, ids: Sequence[int], most: int):
        import torch
        from .hf.cache import CACHE_NAME
        with torch.no_grad():
            made = self._model(torch.tensor([list(ids)], device=self._model.device), use_cache=True, logits_to_keep=1)
        for _ in range(most):
            token = int(made.logits[0, -1].argmax())
            yield token
            with torch.no_grad():
                made = self._model(torch.tensor([[token]], device=self._model.device), cache=made[CACHE_NAME], use_cache=True)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser("python -m deltarule.lm_eval", description="Asks a model the tasks of lm-evaluation-harness.")
    parser.add_argument("--model", required=True, metavar="DIR", help="folder with config.json and model.safetensors")
    parser.add_argument("--tasks", required=True, help="names, with commas between them")
    parser.add_argument("--include_path", metavar="DIR", help="folder with tasks of your own")
    parser.add_argument("--engine", choices=("c", "hf"), default="c", help="the C library, or PyTorch (default c)")
    parser.add_argument("--tokenizer", metavar="DIR", help="folder with tokenizer.json (default that of the model, else bytes)")
    parser.add_argument("--device", default="cpu", help="of engine hf (default cpu)")
    parser.add_argument("--batch_size", type=int, default=8, help="requests a call (default 8)")
    parser.add_argument("--max_length", type=int, help="tokens of a request at most (default no bound)")
    parser.add_argument("--num_fewshot", type=int, help="examples before a question (default as the task has it)")
    parser.add_argument("--limit", type=float, help="items of each task (default all)")
    parser.add_argument("--output", metavar="FILE", help="writes the results as JSON")
    asked = parser.parse_args(arguments)
    try:
        model = DeltaruleLM(asked.model, asked.engine, asked.tokenizer, asked.batch_size, asked.max_length, device=asked.device)
    except (OSError, ValueError, NotImplementedError) as reason:
        print(f"deltarule.lm_eval: {reason}", file=sys.stderr)
        return 1
    import lm_eval
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table
    results = lm_eval.simple_evaluate(model=model, tasks=asked.tasks.split(","), num_fewshot=asked.num_fewshot, limit=asked.limit,
                                      task_manager=TaskManager(include_path=asked.include_path), bootstrap_iters=0)
    print(make_table(results))
    if asked.output:
        with open(asked.output, "w", encoding="utf-8") as file:
            json.dump(results["results"], file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
