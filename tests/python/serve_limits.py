#!/usr/bin/env python3
"""What `deltarule serve` refuses and bounds: bad requests, limits, slow clients, fairness, signals.

    tests/python/serve_limits.py COMMAND [NAME...]

Runs the functions test_NAME below, all of them without names. Needs nothing beside Python.
"""
import concurrent.futures, contextlib, json, os, signal, socket, subprocess, time

import served

PROMPT = "line 17 of file b"


BAD = [  # path, body, a word of the sentence
    ("/v1/completions", "", "body"), ("/v1/completions", "{", "line 1"), ("/v1/completions", "[]", "object"),
    ("/v1/completions", b"{\"prompt\": \"\xff\"}", "decode"), ("/v1/completions", '{"prompt": "a", "prompt": "b"}', "duplicate"),
    ("/v1/completions", "[" * 100000, "depth"), ("/v1/completions", {}, "prompt"), ("/v1/completions", {"prompt": 3}, "prompt"),
    ("/v1/completions", {"prompt": []}, "empty"), ("/v1/completions", {"prompt": [[]]}, "no tokens"),
    ("/v1/completions", {"prompt": [1, "a"]}, "token ids"), ("/v1/completions", {"prompt": [-1]}, "-1"),
    ("/v1/completions", {"prompt": [257]}, "0 to 256"), ("/v1/completions", {"prompt": [1.5]}, "1.5"),
    ("/v1/completions", {"prompt": [["a"]]}, "token ids"), ("/v1/completions", {"prompt": ["a", 1]}, "prompt"),
    ("/v1/completions", {"prompt": "a", "max_tokens": -1}, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 10**9}, "together"),
    ("/v1/completions", {"prompt": "a", "max_tokens": "x"}, "max_tokens"),
    ("/v1/completions", {"prompt": "a" * 5000}, "together"), ("/v1/completions", {"prompt": "a", "n": 0}, "\"n\""),
    ("/v1/completions", {"prompt": ["a"] * 64, "n": 100}, "at most"), ("/v1/completions", {"prompt": "a", "best_of": 3}, "best_of"),
    ("/v1/completions", {"prompt": "a", "temperature": -0.1}, "temperature"),
    ("/v1/completions", '{"prompt": "a", "temperature": NaN}', "body"), ("/v1/completions", {"prompt": "a", "top_p": 1.5}, "top_p"),
    ("/v1/completions", {"prompt": "a", "logprobs": 21}, "logprobs"), ("/v1/completions", {"prompt": "a", "stop": 3}, "stop"),
    ("/v1/completions", {"prompt": "a", "stop": [""]}, "empty"), ("/v1/completions", {"prompt": "a", "stop": ["a"] * 17}, "16"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"), ("/v1/completions", {"prompt": "a", "seed": 1.5}, "seed"),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"999": 1}}, "999"),
    ("/v1/completions", {"prompt": "a", "stream": 1}, "stream"), ("/v1/completions", {"prompt": "a", "stream_options": 1}, "stream_options"),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "xml"}}, "json_object"),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_schema"}}, "no schema"),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": {
        "type": "string", "pattern": "a"}}}}, "pattern"),
    ("/v1/chat/completions", {}, "messages"), ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": "a"}, "messages"), ("/v1/chat/completions", {"messages": [1]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"content": "a"}]}, "role"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 1}]}, "content"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": "b"}, "tools"),
    ("/v1/embeddings", {}, "input"), ("/v1/embeddings", {"input": []}, "empty"), ("/v1/embeddings", {"input": "a", "dimensions": 8}, "dimensions"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "base64"), ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 1}, "prompt"), ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [None]}, "token ids"), ("/detokenize", {"tokens": [65, 10**6]}, "token 1 is 1000000"),
]


def test_bad_requests(server, command, model):
    wrong = []
    for path, body, words in BAD:
        status, text = server.ask("POST", path, body)
        message = json.loads(text)["error"]["message"]
        if status != 400 or words not in message:
            wrong.append((path, str(body)[:80], status, message))
    assert not wrong, wrong
    for method, path, wanted in [("GET", "/nothing", 404), ("GET", "/v1/completions", 405), ("PUT", "/health", 405),
                                 ("POST", "/v1/models", 405), ("GET", "/v1/models/other", 404), ("POST", "/v1/models/tiny", 405), ("GET", "/v1/models/", 404)]:
        status, text = server.ask(method, path)
        assert status == wanted and json.loads(text)["error"]["message"], (method, path, status)
    status, text = server.ask("POST", "/v1/completions", {"prompt": "a", "model": "other"})
    assert status == 404 and json.loads(text)["error"]["code"] == "model_not_found"
    status, text = server.ask("POST", "/v1/completions", b" " * (2 << 20))
    assert status == 413, status
    for raw in [b"\0\0\0\0", b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"A" * 100000]:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            with contextlib.suppress(OSError):  # the server may close it at any of these
                connection.sendall(raw)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
    assert server.complete(PROMPT, max_tokens=3)


def test_chunked_body(server, command, model):
    body = json.dumps({"prompt": PROMPT, "max_tokens": 2}).encode()
    connection = server.connect()
    connection.request("POST", "/v1/completions", iter([body[:5], body[5:]]), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
    connection = server.connect()
    connection.request("POST", "/v1/completions", iter([b" " * 65536] * 40), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_client_goes_away(server, command, model):
    for stream in [False, True]:
        before = server.metric('sequences_total{outcome="gone"}')
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "max_tokens": 3900, "stream": stream,
                                                                  "ignore_eos": True, "n": 4}))
        if stream:
            connection.getresponse().read(10)
        else:
            server.wait_for(lambda: server.metric("slots_used") > 0, "the request has no slot")
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        server.wait_for(lambda: server.metric('sequences_total{outcome="gone"}') == before + 4, "it goes on for nobody")
    server.wait_for(lambda: server.metric("slots_used") == 0, "a slot stays taken")


def test_limits(server, command, model):
    """A key, a short queue and little time, on a server of its own."""
    key = os.path.join(os.path.dirname(model), "key")
    with open(key, "w") as file:
        file.write("secret\n")
    with served.Server(command, model, "--api-key-file", key, "--slots", "1", "--queue", "2", "--timeout", "1") as strict:
        for given in [None, "Bearer wrong", "secret", "Bearer secrets", "Bearer secre", "Bearer s", "Bearer ", "Bearer Secret",
                      "Bearer secretsecret"]:
            headers = {"Authorization": given} if given else {}
            for method, path in [("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/tokenizer_info"), ("POST", "/v1/completions"),
                                 ("POST", "/v1/chat/completions"), ("POST", "/v1/embeddings"), ("POST", "/tokenize"), ("POST", "/detokenize")]:
                assert strict.ask(method, path, "{}" if method == "POST" else None, headers)[0] == 401, (given, path)
        assert strict.ask("GET", "/health")[0] == 200
        right = {"Authorization": "Bearer secret"}
        assert strict.ask("GET", "/v1/models", headers=right)[0] == 200
        status, text = strict.ask("POST", "/v1/completions", {"prompt": "a", "n": 3}, headers=right)
        assert status == 400 and b"at most 2" in text
        long = {"prompt": "a", "max_tokens": 32000, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            statuses = [r[0] for r in pool.map(lambda _: strict.ask("POST", "/v1/completions", long, headers=right), range(8))]
        assert {429, 504} <= set(statuses) <= {200, 429, 504}, statuses


def test_turns(server, command, model):
    """A request of many parts does not keep one of a single part waiting until its last has begun."""
    body = {"prompt": "line", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    with served.Server(command, model, "--slots", "1") as own:
        many = own.connect()
        many.request("POST", "/v1/completions", json.dumps({**body, "n": 20}))
        own.wait_for(lambda: own.metric("queued_sequences") >= 18, "the request of many parts does not wait")
        own.post("/v1/completions", {**body, "max_tokens": 5})
        assert own.metric("queued_sequences") >= 1, "the single answer came behind the many"
        many.sock.shutdown(socket.SHUT_RDWR)
        many.close()


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
STREAM = json.dumps({"prompt": "line", "max_tokens": 30000, "ignore_eos": True, "stream": True, "logprobs": 20})


def shut(own, begin):
    """A client that sends a byte now and then, until it has been shut out."""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", own.port)) as connection:
        connection.setblocking(False)
        connection.send(begin)
        until = time.monotonic() + 300
        while time.monotonic() < until:
            with contextlib.suppress(BlockingIOError):
                if connection.recv(100) == b"":
                    return
            connection.send(b"x")
            time.sleep(0.1)
        raise AssertionError(f"not shut out: {begin}")


def slow_or_deaf(server, command, model):
    with served.Server(command, model, "--client-timeout", "1") as own, concurrent.futures.ThreadPoolExecutor(3) as pool:
        unread = socket.socket()
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect(("127.0.0.1", own.port))
        unread.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(STREAM), STREAM.encode()))
        list(pool.map(lambda begin: shut(own, begin), [b"", HEAD, HEAD + b"Content-Length: 90000\r\n\r\n"]))
        assert own.metric("slow_connections_total") >= 3
        assert own.complete(PROMPT, max_tokens=5) == server.complete(PROMPT, max_tokens=5)
        own.wait_for(lambda: own.metric("slots_used") == 0 and own.metric("connections") == 1, "a client that reads nothing is kept")
        unread.close()


def long_answer(server, command, model):
    """An answer may take longer than the head of a request."""
    with served.Server(command, model, "--client-timeout", "1", "--slots", "1") as own, concurrent.futures.ThreadPoolExecutor(1) as pool:
        connection = own.connect()
        connection.request("POST", "/v1/completions", STREAM)
        response, until = connection.getresponse(), time.monotonic() + 3
        response.read(10)
        waiting = pool.submit(own.complete, PROMPT, max_tokens=5)
        while time.monotonic() < until and response.read(4096):
            pass
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        assert waiting.result() == server.complete(PROMPT, max_tokens=5)


def steady_body(server, command, model):
    """A body that comes at 2 KiB a second is taken, though it takes longer than the head of a request may."""
    with served.Server(command, model, "--client-timeout", "4") as own:
        with socket.create_connection(("127.0.0.1", own.port)) as connection:
            body = json.dumps({"prompt": PROMPT, "max_tokens": 2}).encode() + b" " * 12000
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body))
            for at in range(0, len(body), 500):
                connection.sendall(body[at:at + 500])
                time.sleep(0.25)
            assert b" 200 " in connection.recv(100)


def test_slow_clients(server, command, model):
    """Who says a byte now and then, or reads nothing, is shut out, and keeps nobody waiting. They wait beside each other."""
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(part, server, command, model) for part in (slow_or_deaf, long_answer, steady_body)]:
            done.result()


def test_queue(server, command, model):
    """A request of two parts does not fit into a queue of two in which one waits."""
    long = json.dumps({"prompt": "a", "max_tokens": 32000, "ignore_eos": True})
    with served.Server(command, model, "--slots", "1", "--queue", "2") as own:
        waiting = [own.connect(), own.connect()]
        for count, connection in enumerate(waiting):
            connection.request("POST", "/v1/completions", long)
            own.wait_for(lambda: own.metric("slots_used") == 1 and own.metric("queued_sequences") == count, "it does not wait")
        assert own.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "n": 2})[0] == 429
        for connection in waiting:
            connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()


def test_wrong_start(server, command, model):
    for arguments, status, words in [([], 2, "argument"), ([model + "-not"], 1, "tiny-not"), ([model, model], 2, "two models"),
                                     ([model, "--host", "nowhere"], 2, "numeric address"), ([model, "--slots", "0"], 2, "slots"),
                                     ([model, "--port", str(server.port)], 1, "cannot listen"), (["=x"], 2, "NAME=FOLDER")]:
        ended = subprocess.run([command, "serve", *arguments], capture_output=True, text=True, timeout=60)
        assert ended.returncode == status and words in ended.stderr, (arguments, ended.returncode, ended.stderr)


def test_signals(server, command, model):
    """SIGHUP reads the models anew while answers go on; a broken folder changes nothing; SIGTERM finishes what has begun."""
    own = served.Server(command, f"mine={model}", "--slots", "2")
    # so long that answers are still being made when the signals come
    body = {"prompt": PROMPT, "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
    alone = own.post("/v1/completions", body)["choices"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(own.post, "/v1/completions", body) for _ in range(3)]
        own.wait_for(lambda: own.metric("slots_used") > 0, "no answer begins")
        own.process.send_signal(signal.SIGHUP)
        own.wait_for(lambda: own.metric("reloads_total") == 1, "the models are not read anew")
        assert all(answer.result()["choices"] == alone for answer in answers)
        weights = os.path.join(model, "config.json")
        os.rename(weights, weights + ".away")
        own.process.send_signal(signal.SIGHUP)
        own.wait_for(lambda: "stay as they are" in own.log(), "no word on a model that cannot be read")
        os.rename(weights + ".away", weights)
        assert own.post("/v1/completions", body)["choices"] == alone
        answers = [pool.submit(own.post, "/v1/completions", body) for _ in range(2)]
        own.wait_for(lambda: own.metric("slots_used") == 2, "no answer begins")
        own.stop()
        assert all(answer.result()["choices"] == alone for answer in answers)


if __name__ == "__main__":
    served.run_tests(globals())
