#!/usr/bin/env python3
"""Load on `deltarule serve`: clients that stream completions without a pause, some of which go away in the middle.

    bench/serve.py COMMAND [--clients 64] [--seconds 300] [--slots 64] [--hidden 384 --layers 8 --heads 3 --intermediate 1024]
    bench/serve.py --llama PYTHON [...]     llama.cpp's server with a dense model of as many layers and channels, by a Python that has
                                            the package xllamacpp
    bench/serve.py --url http://127.0.0.1:8080 --pid PID     a server that runs already

Makes a model of random weights with a table of 32,000 tokens, 25 million parameters without flags, and serves it. Before the load each
request is made alone. Then all clients ask these requests at random: half of them greedy, half drawn with a seed; prompts of 20 to
1,600 tokens, some of which begin alike; answers of 8 to 64 tokens. Every answer must be the one that was made alone, bit for bit: a
slot that is mixed up with another shows. Prints times to the first token and between tokens, and the server's memory.

Exit status 1: an answer differs, a request failed, or the memory grew in a run of a minute or more. Needs nothing beside Python; of other
servers answers are not compared.
"""
import argparse, asyncio, json, os, random, subprocess, sys, tempfile, time

sys.dont_write_bytecode = True
import gguf, serving  # noqa: E402

VOCABULARY = 32000
CONTEXT = 4096
LONG_ENOUGH = 60  # seconds of a run whose memory is judged
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def make_tokens():
    """A byte-level vocabulary of 32,000 ids: bytes, then two and three letters, with and without a blank before them; and its merges."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that byte-level vocabularies write as themselves
    tokens, merges = [chr(i) for i in kept] + [chr(256 + i) for i in range(256 - len(kept))], []
    pairs = [(a, b) for a in LETTERS for b in LETTERS]
    for a, b in ([(x, y) for x, y in pairs] + [(x + y, c) for x, y in pairs for c in LETTERS] + [("\u0120", a) for a in LETTERS] +
                 [("\u0120" + x, y) for x, y in pairs] + [("\u0120" + x + y, c) for x, y in pairs for c in LETTERS]):
        if len(tokens) == VOCABULARY - 1:
            break
        merges.append([a, b])
        tokens.append(a + b)
    return [*tokens, "<|endoftext|>"], merges


def write_tokenizer(folder):
    tokens, merges = make_tokens()
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": VOCABULARY - 1, "content": tokens[-1], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
           "special": True}
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump({"version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": level, "post_processor": None,
                   "decoder": level, "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)},
                                               "merges": merges}}, file)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump({"bos_token": tokens[-1], "eos_token": tokens[-1]}, file)


def words(draw, count):
    return " ".join("".join(draw.choices(LETTERS, k=3)) for _ in range(count))


def make_model(command, folder, options):
    """One step of training, since it writes a folder; the weights stay as random as they began."""
    tokenizer, model, corpus = (os.path.join(folder, name) for name in ("tokenizer", "model", "corpus.txt"))
    os.mkdir(tokenizer)
    write_tokenizer(tokenizer)
    with open(corpus, "w") as file:
        file.writelines(words(random.Random(1), 60) + "\n" for _ in range(200))
    sizes = [f"--{name}={getattr(options, name)}" for name in ("hidden", "layers", "heads", "intermediate")]
    subprocess.run([command, "train", "--corpus", corpus, "--tokenizer", tokenizer, "--out", model, "--steps=1", "--batch=1",
                    "--seq-len=64", "--evaluate-every=0", "--save-every=0", *sizes], check=True, stdout=subprocess.DEVNULL)
    return model


def make_requests(count):
    draw = random.Random(2)
    start = words(draw, 300)
    requests = []
    for i in range(count):
        length = draw.choice([20, 20, 60, 60, 200, 600, 1600])
        text = start + " " + words(draw, length) if i % 4 == 0 and length < 600 else words(draw, length)
        requests.append({"prompt": text, "max_tokens": draw.randint(8, 64), "temperature": i % 2, "seed": i, "stream": True,
                         "ignore_eos": True, "top_k": 0, "top_p": 1, "min_p": 0})
    return requests


class Failure(Exception):
    pass


async def ask(address, request, events=None):
    """Streams a completion; gives its text and the times of its events. events: go away after so many."""
    began, times, text = time.monotonic(), [], ""
    body = json.dumps(request).encode()
    reader, writer = await asyncio.open_connection(*address, limit=1 << 20)
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        status = await reader.readline()
        if b" 200 " not in status:
            raise Failure(f"{status!r} {(await reader.read())[:300]!r}")
        while True:
            line = await reader.readline()
            if not line:
                raise Failure("the stream ended early")
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                return text, began, times
            event = json.loads(line[6:])
            if "error" in event:
                raise Failure(event["error"])
            times.append(time.monotonic())
            text += event["choices"][0]["text"] if event["choices"] else ""
            if events and len(times) >= events:
                return None, began, times
    finally:
        writer.close()


def resident(pid):
    """Bytes of a process that are in memory."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


class Load:
    def __init__(self, address, pid, requests, alone):
        self.address, self.pid, self.requests, self.alone = address, pid, requests, alone
        self.first, self.between, self.memory, self.wrong = [], [], [], []
        self.answers = self.left = self.tokens = 0

    async def client(self, number, until):
        draw = random.Random(number)
        while time.monotonic() < until:
            i = draw.randrange(len(self.requests))
            leaves = draw.randint(1, 6) if draw.random() < 0.1 else None
            try:
                text, began, times = await ask(self.address, self.requests[i], leaves)
            except (Failure, OSError, ValueError, asyncio.IncompleteReadError) as failure:
                self.wrong.append(f"request {i}: {failure}")
                await asyncio.sleep(0.1)
                continue
            self.first.append(times[0] - began)
            self.between += [b - a for a, b in zip(times, times[1:])]
            self.tokens += len(times)
            self.left += text is None
            self.answers += text is not None
            if text is not None and self.alone and text != self.alone[i]:
                self.wrong.append(f"request {i}: {text[:60]!r} is not {self.alone[i][:60]!r}")

    async def watch(self, until):
        while time.monotonic() < until:
            self.memory.append(resident(self.pid))
            await asyncio.sleep(0.25)

    async def run(self, clients, seconds):
        until = time.monotonic() + seconds
        await asyncio.gather(self.watch(until), *(self.client(number, until) for number in range(clients)))


def part(values, share):
    values = sorted(values)
    return values[min(int(share * len(values)), len(values) - 1)]


def report(load, seconds):
    """Prints what was measured; the number of things that are wrong."""
    print(f"answers {load.answers}, of which {len(load.wrong)} wrong; clients that went away {load.left}; "
          f"{load.tokens / seconds:.0f} events a second")
    for name, values in [("time to the first token", load.first), ("time between tokens", load.between)]:
        print(f"{name}: p50 {part(values, .5):.3f} s, p90 {part(values, .9):.3f} s, p99 {part(values, .99):.3f} s, "
              f"most {max(values):.3f} s")
    # The stores fill in the first third; what is measured is whether anything grows behind that.
    third = len(load.memory) // 3
    begin, end = (part(values, .5) for values in (load.memory[third:third + third // 3 + 1], load.memory[-(third // 3 + 1):]))
    print(f"memory: {begin / 2**20:.1f} MiB after a third of the time, {end / 2**20:.1f} MiB at the end, "
          f"at most {max(load.memory) / 2**20:.1f} MiB")
    for line in load.wrong[:10]:
        print(line)
    grown = seconds >= LONG_ENOUGH and end - begin > max(8 << 20, begin // 50)
    if grown:
        print("the memory grew")
    if seconds < LONG_ENOUGH:
        print(f"memory is judged from {LONG_ENOUGH} seconds on: until then the stores fill")
    return len(load.wrong) + grown


def measure(address, pid, options):
    requests = make_requests(options.requests)
    alone = []
    for request in requests:
        alone.append(asyncio.run(ask(address, request))[0])
    if len(set(alone)) < 0.9 * len(alone):
        raise SystemExit("the answers of different requests are alike: they would not show a mixed slot")
    load = Load(address, pid, requests, None if options.url or options.llama else alone)
    asyncio.run(load.run(options.clients, options.seconds))
    return report(load, options.seconds)


def serve_llama(options, folder):
    """llama.cpp's server, once it is ready, and its port."""
    tokens, merges = make_tokens()
    model = os.path.join(folder, "model.gguf")
    gguf.write(model, tokens, merges, options.hidden, options.layers, options.heads, options.intermediate, CONTEXT)
    with open(os.path.join(folder, "log"), "w+") as log:
        server = subprocess.Popen([options.llama, os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_server.py"), model,
                                   str(options.slots), str(CONTEXT)], stdout=subprocess.PIPE, stderr=log, text=True)
        for line in server.stdout:
            if line.startswith("listening on"):
                return server, int(line.rsplit(":", 1)[1])
        log.seek(0)
        raise SystemExit(f"llama.cpp's server did not start: {log.read()[-3000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?")
    for name, value in [("clients", 64), ("seconds", 300), ("slots", 64), ("requests", 32), ("hidden", 384), ("layers", 8),
                        ("heads", 3), ("intermediate", 1024), ("store", 256)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--llama")
    parser.add_argument("--url")
    parser.add_argument("--pid", type=int)
    options = parser.parse_args()
    if options.url:
        host, port = options.url.removeprefix("http://").rstrip("/").split(":")
        sys.exit(measure((host, int(port)), options.pid, options) > 0)
    if options.llama:
        with tempfile.TemporaryDirectory() as folder:
            server, port = serve_llama(options, folder)
            try:
                wrong = measure(("127.0.0.1", port), server.pid, options)
            finally:
                server.terminate()
                server.wait(timeout=60)
            sys.exit(wrong > 0)
    if not options.command:
        parser.error("COMMAND is missing: the deltarule that is measured")
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(options.command, folder, options)
        flags = [f"--slots={options.slots}", f"--context={CONTEXT}", f"--store={options.store}", f"--connections={2 * options.clients + 16}"]
        wrong, ended = serving.serve(options.command, model, flags, folder,
                                     lambda port, pid: measure(("127.0.0.1", port), pid, options))
        sys.exit(wrong > 0 or not ended)


main()
