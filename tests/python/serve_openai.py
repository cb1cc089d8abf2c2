#!/usr/bin/env python3
"""The Python package openai as a client of `deltarule serve`: completions, chats, streams, logprobs, stop texts, embeddings, answers by
a schema, calls of tools, errors.

    tests/python/serve_openai.py COMMAND

Exit status 0: all is well; 77: the package is not installed.
"""
import json, os, sys, tempfile, typing

import served

try:
    import openai, pydantic
except ImportError:
    print("skipped: the Python package openai is not installed")
    sys.exit(77)


def expect(error, words, call):
    try:
        call()
    except error as failure:
        assert words in str(failure), failure
        return
    raise AssertionError(f"no {error.__name__} with '{words}'")


class Answer(pydantic.BaseModel):
    """What an answer is parsed into: the package makes a schema of it, with references and alternatives."""

    class Part(pydantic.BaseModel):
        kind: typing.Literal["a", "b"]
        size: typing.Optional[int]

    right: bool
    part: typing.Optional[Part]


TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {"line": {"type": "integer"}},
                                                                         "required": ["line"]}}}


def check_formats(client, chat):
    """Answers by a schema, and calls of tools, as the package reads them."""
    chat = {**chat, "max_completion_tokens": 400}
    answer = client.beta.chat.completions.parse(**chat, response_format=Answer)
    assert isinstance(answer.choices[0].message.parsed, Answer) and answer.choices[0].finish_reason == "stop"
    made = client.chat.completions.create(**chat, tools=[TOOL], tool_choice="required")
    call = made.choices[0].message.tool_calls[0]
    assert made.choices[0].finish_reason == "tool_calls" and call.function.name == "find"
    assert isinstance(json.loads(call.function.arguments)["line"], int)
    with client.beta.chat.completions.stream(**chat, tools=[TOOL], tool_choice="required") as stream:
        for event in stream:
            pass
        final = stream.get_final_completion().choices[0].message
    assert final.tool_calls[0].function.arguments == call.function.arguments
    messages = chat["messages"] + [made.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "17"}]
    assert client.chat.completions.create(**{**chat, "messages": messages, "max_completion_tokens": 5}, tools=[TOOL]).choices


def check(client, server):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "deltarule"
    ask = dict(model="tiny", prompt="line 17 of file b", max_tokens=30, temperature=0)
    whole = client.completions.create(**ask, logprobs=3, n=2)
    assert len(whole.choices) == 2 and whole.choices[0].text == whole.choices[1].text
    assert whole.usage.completion_tokens == 60 and len(whole.choices[0].logprobs.tokens) == 30
    assert "".join(whole.choices[0].logprobs.tokens) == whole.choices[0].text
    pieces = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole.choices[0].text
    assert pieces[-1].usage.completion_tokens == 30
    stopped = client.completions.create(**{**ask, "max_tokens": 100}, stop=["matrix"])
    assert stopped.choices[0].finish_reason == "stop" and stopped.choices[0].text.endswith("is a ")
    assert client.completions.create(**{**ask, "prompt": [256, *b"line 17 of file b"]}).choices[0].text == whole.choices[0].text

    chat = dict(model="tiny", messages=[{"role": "user", "content": "line"}], max_completion_tokens=20, temperature=0)
    answer = client.chat.completions.create(**chat, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.role == "assistant"
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
    pieces = client.chat.completions.create(**chat, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == answer.choices[0].message.content
    drawn = [client.chat.completions.create(**{**chat, "temperature": 1}, seed=7).choices[0].message.content for _ in range(2)]
    assert drawn[0] == drawn[1]

    vectors = client.embeddings.create(model="tiny", input=["a text", "another"])
    floats = client.embeddings.create(model="tiny", input="a text", encoding_format="float")
    assert len(vectors.data) == 2 and vectors.data[0].embedding == floats.data[0].embedding

    expect(openai.NotFoundError, "there is no model", lambda: client.completions.create(**{**ask, "model": "other"}))
    expect(openai.BadRequestError, "temperature", lambda: client.completions.create(**{**ask, "temperature": -1}))
    expect(openai.BadRequestError, "together at most", lambda: client.completions.create(**{**ask, "max_tokens": 10**6}))
    check_formats(client, chat)
    expect(openai.BadRequestError, "pattern", lambda: client.chat.completions.create(**chat, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "a"}}}))
    wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    expect(openai.AuthenticationError, "API key", lambda: wrong.models.list())


def main():
    command = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        model = served.make_model(command, folder)
        with open(os.path.join(model, "chat_template.jinja"), "w") as file:
            file.write(served.TEMPLATE_WITH_TOOLS)
        with served.Server(command, model, environment={"DELTARULE_API_KEY": "secret"}) as server:
            check(openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0), server)
    print(f"openai {openai.__version__}: all is well")


main()
