"""The server as OpenAI's own client sees it, over an engine that repeats the prompt."""

import http.client
import json
import os
import re
import signal
import socket
import threading

import openai
import pytest

from fake_engine import FakeEngine

MODEL = "tiny"
HELLO = [{"role": "user", "content": "hi"}]


def complete(served, prompt="abc", **keys):
    return served.client.completions.create(model=MODEL, prompt=prompt, **keys)


def chat(served, **keys):
    return served.client.chat.completions.create(model=MODEL, messages=HELLO, **keys)


def raw(served, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*served.address, timeout=60)
    connection.request(method, path, body)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def metric(served, name: str) -> float:
    text = raw(served, "GET", "/metrics")[1].decode()
    found = re.search(rf"^maxtext_{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def ask(served, **fields) -> socket.socket:
    """A connection that has asked for a completion."""
    body = json.dumps({"model": MODEL, "prompt": "abc", "stream": True, "max_tokens": 40} | fields)
    connection = socket.create_connection(served.address, timeout=60)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall((head + body).encode())
    return connection


# completions


def test_a_completion_has_text_reason_and_usage(served) -> None:
    got = complete(served, max_tokens=7)
    assert got.object == "text_completion"
    assert got.model == MODEL
    assert [(one.index, one.text, one.finish_reason) for one in got.choices] == [
        (0, "abcabca", "length")
    ]
    usage = got.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 7, 11)


def test_sixteen_tokens_are_written_where_none_are_asked_for(served) -> None:
    assert complete(served).usage.completion_tokens == 16
    # Fewer where there is no room for so many: 64 with BOS.
    assert complete(served, prompt="a" * 60).usage.completion_tokens == 3


def test_eos_and_stop_texts_end_a_completion_and_are_no_part_of_it(served) -> None:
    got = complete(served, prompt="abc.", max_tokens=20)
    assert (got.choices[0].text, got.choices[0].finish_reason) == ("abc", "stop")
    got = complete(served, prompt="abc.", max_tokens=6, extra_body={"ignore_eos": True})
    assert (got.choices[0].text, got.choices[0].finish_reason) == ("abc.ab", "length")
    for stop in ("ca", ["x", "ca"]):
        got = complete(served, max_tokens=20, stop=stop)
        assert (got.choices[0].text, got.choices[0].finish_reason) == ("ab", "stop")


def test_several_prompts_with_several_answers_come_in_order(served) -> None:
    got = complete(served, prompt=["ab", "c"], n=2, max_tokens=3)
    assert [one.index for one in got.choices] == [0, 1, 2, 3]
    assert [one.text for one in got.choices] == ["aba", "aba", "ccc", "ccc"]
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (5, 12)
    assert complete(served, prompt=[[97], [98]], max_tokens=2).choices[1].text == "bb"


def test_the_prompt_is_echoed(served) -> None:
    got = complete(served, prompt=["ab", "c"], echo=True, max_tokens=1)
    assert [one.text for one in got.choices] == ["aba", "cc"]
    parts = list(complete(served, prompt=[97, 98], echo=True, max_tokens=1, stream=True))
    assert [one.choices[0].text for one in parts] == ["ab", "a"]


def test_probabilities_of_a_completion(served) -> None:
    got = complete(served, prompt="xy", max_tokens=2, logprobs=2).choices[0].logprobs
    assert got.tokens == ["x", "y"]
    assert got.token_logprobs == [-0.5, -0.5]
    assert got.text_offset == [0, 1]
    assert got.top_logprobs == [{"x": -0.5, "a": -1.0}, {"y": -0.5, "a": -1.0}]
    parts = list(complete(served, prompt="xy", max_tokens=2, logprobs=0, stream=True))
    assert [one.choices[0].logprobs.tokens for one in parts] == [["x"], ["y"]]
    assert [one.choices[0].logprobs.text_offset for one in parts] == [[0], [1]]
    assert parts[0].choices[0].logprobs.top_logprobs == [{"x": -0.5}]


@pytest.mark.parametrize("keys", [{}, {"n": 2}, {"stop": ["cab"]}, {"prompt": ["né", "ü"]}])
def test_a_stream_joins_to_the_whole(served, keys) -> None:
    keys = {"max_tokens": 9} | keys
    whole = complete(served, **keys)
    options = {"include_usage": True}
    *parts, last = complete(served, stream=True, stream_options=options, **keys)
    for choice in whole.choices:
        own = [one.choices[0] for one in parts if one.choices[0].index == choice.index]
        assert "".join(one.text for one in own) == choice.text
        assert [one.finish_reason for one in own][-1] == choice.finish_reason
        assert {one.finish_reason for one in own[:-1]} <= {None}
    assert {one.usage for one in parts} == {None}
    assert not last.choices
    assert last.usage == whole.usage
    assert len({one.id for one in [*parts, last]}) == 1


# chats


def test_a_chat_goes_through_the_template(served) -> None:
    got = chat(served, max_completion_tokens=8)
    assert got.object == "chat.completion"
    assert got.choices[0].message.role == "assistant"
    # "user: hi|assistant: ", without BOS.
    assert got.choices[0].message.content == "user: hi"
    assert got.usage.prompt_tokens == 20


def test_a_chat_takes_all_the_room_there_is(served) -> None:
    assert chat(served).usage.total_tokens == 64
    assert chat(served, max_tokens=3).usage.completion_tokens == 3


def test_a_streamed_chat_begins_with_the_role(served) -> None:
    first, second, *rest = chat(served, max_tokens=5, n=2, stream=True)
    for index, one in enumerate((first, second)):
        assert one.object == "chat.completion.chunk"
        assert (one.choices[0].index, one.choices[0].delta.role) == (index, "assistant")
    for index in range(2):
        own = [one.choices[0] for one in rest if one.choices[0].index == index]
        assert "".join(one.delta.content or "" for one in own) == "user:"
        assert own[-1].finish_reason == "length"


def test_probabilities_of_a_chat(served) -> None:
    got = chat(served, max_tokens=1, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert [(one.token, one.logprob, one.bytes) for one in got] == [("u", -0.5, [117])]
    # JSON has no word for minus infinity.
    assert [(one.token, one.logprob) for one in got[0].top_logprobs] == [
        ("u", -0.5),
        ("a", -1.0),
        ("b", -9999.0),
    ]
    # Half of a character has no text.
    message = [{"role": "user", "content": "é"}]
    keys = {"model": MODEL, "messages": message, "max_tokens": 8, "logprobs": True}
    got = served.client.chat.completions.create(**keys).choices[0]
    assert got.message.content == "user: é"
    assert [one.bytes for one in got.logprobs.content[6:]] == [None, None]


# errors


def test_errors_have_openais_form(served) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        served.client.completions.create(model="gpt", prompt="a")
    assert caught.value.body == {
        "message": "The model `gpt` does not exist; this server has `tiny`",
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        complete(served, temperature=3)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")


def test_a_prompt_without_room_is_refused(served) -> None:
    for keys in (
        {"prompt": "a" * 60, "max_tokens": 4},
        {"prompt": "a" * 64},
        {"prompt": "a" * 60, "max_tokens": 4, "stream": True},
    ):
        with pytest.raises(openai.BadRequestError, match="context length is 64 tokens") as caught:
            complete(served, **keys)
        assert caught.value.code == "context_length_exceeded"
    assert complete(served, prompt="a" * 60, max_tokens=3).usage.total_tokens == 64


def test_what_the_engine_refuses_is_a_bad_request(served) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="the prompt has id 999"):
            complete(served, prompt=[[97], [999]], stream=stream)
        with pytest.raises(openai.BadRequestError, match="the prompt has id 999"):
            complete(served, prompt=[[97], [999]], stream=stream, echo=True)
    assert served.engine.num_free_pages == served.engine.num_pages
    with pytest.raises(openai.BadRequestError, match="the prompt has no tokens"):
        complete(served, prompt=[[]])


def test_what_the_template_refuses_is_a_bad_request(served) -> None:
    with pytest.raises(openai.BadRequestError, match="no tool speaks first"):
        served.client.chat.completions.create(
            model=MODEL, messages=[{"role": "tool", "content": "x", "tool_call_id": "1"}]
        )


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/chat", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405)],
)
def test_unknown_addresses_are_errors_of_the_same_form(served, method, path, status) -> None:
    got, body = raw(served, method, path)
    assert got == status
    assert f"{method} {path}" in json.loads(body)["error"]["message"]


def test_a_body_that_is_no_json_is_refused(served) -> None:
    status, body = raw(served, "POST", "/v1/completions", b"{")
    assert status == 400
    assert "must be a JSON object" in json.loads(body)["error"]["message"]


# the rest of the interface


def test_the_model_is_listed(served) -> None:
    assert [one.id for one in served.client.models.list()] == [MODEL]
    assert served.client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="`gpt` does not exist"):
        served.client.models.retrieve("gpt")


def test_the_server_is_healthy(served) -> None:
    assert raw(served, "GET", "/health") == (200, b'{"status":"ok"}')


def test_metrics_count_requests_and_tokens(serving) -> None:
    with serving() as served:
        complete(served, max_tokens=5)
        complete(served, max_tokens=3, n=2)
        with pytest.raises(openai.BadRequestError):
            complete(served, n=0)
        for name, want in (
            ('requests_total{endpoint="/v1/completions",status="200"}', 2),
            ('requests_total{endpoint="/v1/completions",status="400"}', 1),
            ("prompt_tokens_total", 8),
            ("generated_tokens_total", 11),
            ("time_to_first_token_seconds_count", 3),
            ("time_per_output_token_seconds_count", 8),
            ("pages", 64),
            ("pages_free", 64),
            ("requests_open", 0),
            ("requests_waiting", 0),
        ):
            assert metric(served, name) == want


# limits, and clients that leave


def test_bodies_and_answers_have_limits(serving) -> None:
    with serving("serve_max_body_bytes=200", "serve_max_tokens=5") as served:
        with pytest.raises(openai.APIStatusError, match="longer than 200 bytes") as caught:
            complete(served, prompt="a" * 200)
        assert caught.value.status_code == 413
        # The same without a length that is told before.
        connection = socket.create_connection(served.address, timeout=60)
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(f"{head}c9\r\n{'a' * 201}\r\n".encode())
        assert connection.recv(13) == b"HTTP/1.1 413 "
        connection.close()
        with pytest.raises(openai.BadRequestError, match="max_tokens is 6; 5 is the most"):
            complete(served, max_tokens=6)
        assert complete(served).usage.completion_tokens == 5
        assert chat(served).usage.completion_tokens == 5


def test_without_a_template_there_are_no_chats(serving) -> None:
    with (
        serving(template="") as served,
        pytest.raises(openai.BadRequestError, match="chat_template=FILE"),
    ):
        chat(served)


def test_a_full_queue_sends_clients_away(serving) -> None:
    engine = FakeEngine(max_num_seqs=1)
    with serving("serve_max_waiting=1", engine=engine) as served:
        with pytest.raises(openai.BadRequestError, match="3 answers are asked for; 2 is the most"):
            complete(served, n=3)
        engine.gate.clear()
        waiting = threading.Thread(target=complete, args=(served,), kwargs={"n": 2})
        waiting.start()
        served.wait("num_waiting", 1)
        with pytest.raises(openai.RateLimitError, match="2 requests run and wait") as caught:
            complete(served)
        assert caught.value.response.headers["retry-after"] == "1"
        assert metric(served, "requests_open") == 2
        engine.gate.set()
        waiting.join()
        assert complete(served).usage.completion_tokens == 16


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_pages(serving, stream, caplog) -> None:
    # So many that no answer has ended before the server knows that the client left.
    engine, many = FakeEngine(max_length=10**9), 10**8
    with serving(engine=engine) as served:
        engine.gate.clear()
        connection = ask(served, stream=stream, n=3, prompt=["a" * 20, "b"], max_tokens=many)
        served.wait("num_running", 6)
        if stream:
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        connection.close()
        engine.gate.set()
        served.wait("num_free_pages", engine.num_pages)
        assert complete(served, max_tokens=3).choices[0].text == "abc"
        assert len(engine.cancelled) == 6
        assert metric(served, 'requests_total{endpoint="/v1/completions",status="499"}') == 1
    assert not caplog.records


def test_what_takes_too_long_is_given_up(serving) -> None:
    engine = FakeEngine()
    with serving("serve_timeout_seconds=0.3", engine=engine) as served:
        assert complete(served, max_tokens=1).choices[0].text == "a"
        engine.gate.clear()
        with pytest.raises(openai.InternalServerError, match=r"longer than 0.3 seconds") as caught:
            complete(served)
        assert caught.value.status_code == 504
        with pytest.raises(openai.APIError, match=r"longer than 0.3 seconds"):
            list(chat(served, stream=True))
        engine.gate.set()
        served.wait("num_free_pages", engine.num_pages)


def test_a_draining_server_ends_what_runs_and_takes_nothing_new(serving) -> None:
    engine = FakeEngine()
    with serving(engine=engine) as served:
        engine.gate.clear()
        stream = chat(served, max_tokens=8, stream=True)
        served.worker.draining = True
        with pytest.raises(openai.InternalServerError, match="shutting down") as caught:
            complete(served)
        assert caught.value.status_code == 503
        assert raw(served, "GET", "/health") == (503, b'{"status":"draining"}')
        engine.gate.set()
        got = "".join(one.choices[0].delta.content or "" for one in stream)
        assert got == "user: hi"
        assert served.worker.num_open == 0


def test_an_engine_that_fails_ends_its_requests(serving) -> None:
    engine = FakeEngine()
    with serving(engine=engine) as served:
        engine.gate.clear()
        stream = chat(served, stream=True)
        engine.failure = FloatingPointError("no more")
        engine.gate.set()
        with pytest.raises(openai.APIError, match="the engine has stopped"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="the engine has stopped"):
            complete(served)
        assert raw(served, "GET", "/health") == (503, b'{"status":"failed"}')
        assert served.worker.failure is engine.failure


# the end


def test_a_signal_lets_what_runs_come_to_its_end(run_to_its_end) -> None:
    engine = FakeEngine()
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    def clients(served) -> None:
        engine.gate.clear()
        stream = chat(served, max_tokens=8, stream=True)
        os.kill(os.getpid(), signal.SIGTERM)
        while not served.worker.draining:
            assert raw(served, "GET", "/health")[0] in (200, 503)
        with pytest.raises(openai.InternalServerError, match="shutting down"):
            complete(served)
        engine.gate.set()
        assert "".join(one.choices[0].delta.content or "" for one in stream) == "user: hi"

    served = run_to_its_end(engine, clients)
    assert served.worker.failure is None
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_an_engine_that_fails_ends_the_server(run_to_its_end) -> None:
    engine = FakeEngine()
    engine.failure = FloatingPointError("no more")

    def clients(served) -> None:
        with pytest.raises(openai.InternalServerError, match="the engine has stopped"):
            complete(served)

    assert run_to_its_end(engine, clients).worker.failure is engine.failure
