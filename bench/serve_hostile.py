#!/usr/bin/env python3
"""Clients that mean no good, on `deltarule serve`: many short requests, and beside them clients that are slow on purpose.

    bench/serve_hostile.py COMMAND [--requests 10000] [--clients 16] [--slow 24] [--client-timeout 5] [--room 4]

Makes a small model of random weights and serves it. The clients send short requests one after another, as many as asked: tokens,
completions of one token, streams, chats, broken JSON, unknown paths, bodies that are too long, some over a connection that is
kept, some over one each. Meanwhile slow clients come back again and again: one that sends the head of a request a byte at a time, one
its body, one that opens a connection and says nothing, one that asks for a long stream and reads none of it. They may not keep the
others from being answered, and the server must shut each of them out.

Exit status 1: a right request failed or a wrong one did not, a slow client was kept, or from the first fifth of the requests to the
end the process has grown by more than --room MiB and 64 bytes a request. Needs nothing beside Python.
"""
import argparse, http.client, json, os, random, re, socket, subprocess, sys, tempfile, threading, time, urllib.request

sys.dont_write_bytecode = True
import serving  # noqa: E402

ROOM_EACH = 64  # bytes by which the process may grow for each request, beside --room


def make_model(command, folder):
    corpus, model = os.path.join(folder, "corpus.txt"), os.path.join(folder, "model")
    with open(corpus, "w") as file:
        file.writelines(f"line {i}: the state is a matrix\n" for i in range(300))
    subprocess.run([command, "train", "--corpus", corpus, "--out", model, "--steps=1", "--batch=1", "--seq-len=32", "--hidden=32", "--layers=1",
                    "--heads=1", "--intermediate=32", "--evaluate-every=0", "--save-every=0"], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(model, "chat_template.jinja"), "w") as file:
        file.write("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}")
    return model


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


# ---- short requests ----

SHORT = [  # method, path, body, status
    ("POST", "/tokenize", {"prompt": "line 4"}, 200),
    ("POST", "/v1/completions", {"prompt": "line 4", "max_tokens": 1}, 200),
    ("POST", "/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2, "logprobs": 3, "echo": True}, 200),
    ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 3, "stream": True}, 200),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, 200),
    ("POST", "/v1/embeddings", {"input": "line"}, 200),
    ("POST", "/v1/completions", '{"prompt": "x', 400),
    ("POST", "/v1/completions", {"prompt": "x", "temperature": -1}, 400),
    ("POST", "/v1/completions", " " * (1100 << 10), 413),
    ("GET", "/nothing", None, 404),
    ("GET", "/health", None, 200),
    ("GET", "/metrics", None, 200),
    ("GET", "/", None, 200),
]
SHARES = [8, 8, 8, 8, 8, 8, 4, 4, 1, 4, 8, 2, 1]


class Requests:
    def __init__(self, port, pid, count):
        self.port, self.pid, self.count = port, pid, count
        self.done, self.wrong, self.early = 0, [], None
        self.lock = threading.Lock()

    def next(self):
        with self.lock:
            self.done += 1
            if self.done == self.count // 5:
                self.early = resident(self.pid)
            return self.done <= self.count

    def client(self, number):
        draw, connection = random.Random(number), None
        while self.next():
            method, path, body, wanted = draw.choices(SHORT, SHARES)[0]
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
                connection.request(method, path, json.dumps(body) if isinstance(body, dict) else body)
                response = connection.getresponse()
                text = response.read()
                if response.status != wanted:
                    self.wrong.append(f"{method} {path}: status {response.status} instead of {wanted}: {text[:200]!r}")
                if draw.random() < 0.5 or response.will_close:
                    connection.close()
                    connection = None
            except (OSError, http.client.HTTPException) as failure:
                self.wrong.append(f"{method} {path}: {failure!r}")
                connection = None
        if connection:
            connection.close()


# ---- slow clients ----

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"prompt": "line", "max_tokens": 3000, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()


def dribble(connection, data, until):
    """A byte a second, until the server has closed the connection; False: it has not."""
    for byte in data:
        if time.monotonic() > until:
            return False
        try:
            connection.send(bytes([byte]))
            connection.settimeout(1)
            if connection.recv(4096) == b"":
                return True
        except TimeoutError:
            pass
        except OSError:
            return True
    return False


def wait_for_end(connection, until):
    """Says nothing; whether the server closes the connection."""
    connection.settimeout(max(until - time.monotonic(), 1))
    try:
        return connection.recv(4096) == b""
    except TimeoutError:
        return False


class Slow:
    def __init__(self, port, seconds):
        self.port, self.seconds = port, seconds
        self.ending = threading.Event()
        self.kept, self.shut = [], 0
        self.deaf = []  # connections whose clients read nothing, which so do not see that they were closed

    def client(self, number):
        kind = ["head", "body", "silent", "reads nothing"][number % 4]
        while not self.ending.is_set():
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            try:
                connection.connect(("127.0.0.1", self.port))
                until = time.monotonic() + 20 * self.seconds + 60  # the machine may be busy
                if kind == "head":
                    over = dribble(connection, HEAD * 100, until)
                elif kind == "body":
                    connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
                    over = dribble(connection, b" " * 100000, until)
                elif kind == "silent":
                    over = wait_for_end(connection, until)
                else:
                    connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY))
                    self.deaf.append(connection)
                    self.ending.wait(2 * self.seconds)
                    continue
            except OSError:
                over = True
            connection.close()
            if over:
                self.shut += 1
            else:
                self.kept.append(kind)


    def judge_deaf(self):
        """The server has closed all connections that are still open here, but the one that asks."""
        until, open_there = time.monotonic() + 20 * self.seconds + 60, 0
        while time.monotonic() < until:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
                open_there = int(re.search(rb"^deltarule_connections (\d+)", answer.read(), re.M)[1]) - 1
            if open_there == 0:
                break
            time.sleep(0.2)
        self.kept += ["reads nothing"] * open_there
        self.shut += len(self.deaf) - open_there
        for connection in self.deaf:
            connection.close()


# ---- both ----


def measure(port, pid, options):
    requests, slow = Requests(port, pid, options.requests), Slow(port, options.client_timeout)
    slow_threads = [threading.Thread(target=slow.client, args=(i,)) for i in range(options.slow)]
    threads = [threading.Thread(target=requests.client, args=(i,)) for i in range(options.clients)]
    began = time.monotonic()
    for thread in slow_threads + threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, end = time.monotonic() - began, resident(pid)
    slow.ending.set()
    for thread in slow_threads:
        thread.join()
    slow.judge_deaf()
    grown, room = end - requests.early, (options.room << 20) + ROOM_EACH * options.requests * 4 // 5
    print(f"{options.requests} requests in {seconds:.1f} s, {len(requests.wrong)} not as they should be; slow clients shut out {slow.shut} "
          f"times, kept {len(slow.kept)}")
    print(f"memory: {requests.early / 2**20:.1f} MiB after a fifth, {end / 2**20:.1f} MiB at the end; {room / 2**20:.1f} MiB more would do")
    for line in requests.wrong[:10] + [f"kept a client that is slow: {kind}" for kind in slow.kept[:4]]:
        print(line)
    return bool(requests.wrong or slow.kept or slow.shut < options.slow or grown > room)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    for name, value in [("requests", 10000), ("clients", 16), ("slow", 24), ("client-timeout", 5), ("room", 4)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(options.command, folder)
        flags = ["--slots=64", "--max-body=1", "--store=1", "--context=4096", f"--client-timeout={options.client_timeout}",
                 f"--connections={options.clients + options.slow + 64}"]
        wrong, ended = serving.serve(options.command, model, flags, folder, lambda port, pid: measure(port, pid, options))
    sys.exit(wrong or not ended)


main()
