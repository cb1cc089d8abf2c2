#!/usr/bin/env python3
"""The page at / of `deltarule serve` in a headless browser: it lists the models, chats, continues a text, stops, shows errors.

    tests/python/serve_page.py COMMAND [--screenshot FILE.png]

Exit status 77: there is no chromium. Its DevTools are spoken to over a socket, so that nothing beside Python is needed.
"""
import base64, contextlib, json, os, shutil, socket, subprocess, sys, tempfile, time, urllib.request

import served


class Browser:
    """A page of a browser that is started for it."""

    def __init__(self, program, folder, url):
        self.process = subprocess.Popen([program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
                                         "--window-size=900,700", f"--user-data-dir={folder}", url],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file, self.number = os.path.join(folder, "DevToolsActivePort"), 0
        wait(lambda: os.path.exists(port_file) and open(port_file).read().count("\n") > 0, "the browser does not start")
        port = int(open(port_file).readline())
        wait(lambda: self.find(port, url), "the browser has no page")
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(300)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.stream = self.socket.makefile("rb")
        while self.stream.readline().strip():
            pass

    def find(self, port, url):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            pages = [page for page in json.load(answer) if page["type"] == "page" and page["url"].startswith(url)]
        if pages:
            self.path = pages[0]["webSocketDebuggerUrl"].split(str(port), 1)[1]
        return pages

    def call(self, method, **parameters):
        self.number += 1
        data = json.dumps({"id": self.number, "method": method, "params": parameters}).encode()
        size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + len(data).to_bytes(2, "big")
        self.socket.sendall(b"\x81" + size + b"\0\0\0\0" + data)  # a masked frame, with a mask that changes nothing
        while True:
            _, size = self.stream.read(2)
            size &= 127
            if size > 125:
                size = int.from_bytes(self.stream.read(2 if size == 126 else 8), "big")
            message = json.loads(self.stream.read(size))
            if message.get("id") == self.number:
                return message["result"]

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, (expression, result)
        return result["result"].get("value")

    def say(self, text, over=True):
        self.value(f"$('text').value = {json.dumps(text)}; $('form').requestSubmit()")
        if over:
            wait(lambda: self.value("running === null"), f"no end of the answer to {text}")

    def last(self, kind):
        return self.value(f"[...document.querySelectorAll('.{kind}')].at(-1)?.textContent")


def wait(condition, what):
    until = time.monotonic() + 120  # the machine may be busy
    while time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError):
            if condition():
                return
        time.sleep(0.05)
    raise AssertionError(what)


def check(page, server):
    wait(lambda: page.value("typeof $ === 'function' && $('model').options.length > 0"), "no model is listed")
    assert page.value("[...$('model').options].map(o => o.text)") == ["tiny", "plain"]
    assert page.value("$('mode').value") == "chat"
    page.value("$('temperature').value = 0; $('tokens').value = 40")
    messages = []
    for text in ["line 12 of file b", "line 13"]:
        page.say(text)
        messages.append({"role": "user", "content": text})
        answer = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 40, "temperature": 0})["choices"][0]["message"]
        messages.append(answer)
        assert page.last("user") == text and page.last("answer") == answer["content"], (page.last("answer"), answer)
    page.value("$('model').selectedIndex = 1; $('model').dispatchEvent(new Event('change'))")
    assert page.value("$('mode').value") == "text" and "no chat template" in page.value("$('status').textContent")
    page.say("line 5 of")
    assert page.last("answer") == server.complete("line 5 of", max_tokens=40)[0]["text"]
    page.value("$('tokens').value = 30000")
    page.say("line", over=False)
    wait(lambda: page.value("running !== null && [...document.querySelectorAll('.answer')].at(-1).textContent.length > 20"), "no answer begins")
    page.value("$('stop').click()")
    wait(lambda: page.value("running === null") and server.metric("slots_used") == 0, "the answer goes on")
    page.value("$('temperature').value = 1000")
    page.say("<b>wrong</b>")
    assert "temperature" in page.last("error") and page.last("prompt") == "<b>wrong</b>", page.last("error")
    assert page.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), "the page is too wide"


def main():
    command = sys.argv[1]
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        print("skipped: there is no chromium, the browser that looks at the page")
        sys.exit(77)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        model = served.make_model(command, folder)
        plain = shutil.copytree(model, os.path.join(folder, "plain"))
        os.remove(os.path.join(plain, "chat_template.jinja"))
        with served.Server(command, model, plain) as server:
            page = Browser(program, os.path.join(folder, "browser"), server.url + "/")
            try:
                check(page, server)
                if sys.argv[2:3] == ["--screenshot"]:
                    with open(sys.argv[3], "wb") as file:
                        file.write(base64.b64decode(page.call("Page.captureScreenshot")["data"]))
            finally:
                page.process.terminate()
                page.process.wait()
    print("the page is well")


main()
