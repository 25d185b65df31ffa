"""`throng chat`: in a pipe, on a terminal, and with a running server."""

import fcntl
import http.server
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time

import pytest

LIMIT_S = 120
GREEDY = ("--temperature", "0", "--max-tokens", "16")


def chat(binary, *arguments, stdin="", **variables):
    return subprocess.run(
        [binary, "chat", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **variables},
    )


def test_unknown_commands_are_refused_and_not_sent(binary):
    answer = chat(binary, stdin="/wat\n")
    assert answer.returncode == 0, answer.stderr
    assert "/wat is no command. Commands: /" in answer.stderr
    assert answer.stdout == ""


def test_a_pipe_gets_no_colours(binary):
    answer = chat(binary, *GREEDY, stdin="Hello!\n")
    assert answer.stdout.strip() and "\x1b" not in answer.stdout + answer.stderr


def test_a_full_context_says_what_to_do(binary):
    answer = chat(binary, "--max-model-len", "64", stdin="one two three " * 100 + "\nHello!\n")
    assert answer.returncode == 1, "a message had no answer"
    assert "context is full: /new starts over" in answer.stderr and "a message had no answer" in answer.stderr
    assert answer.stdout.strip(), "the chat goes on"


def test_a_server_answers_as_the_model_itself_would(binary, start):
    alone = chat(binary, *GREEDY, stdin="Hello!\nWhat is 7 plus 5?\n")
    with start() as server:
        for url in (server.url, server.url + "/v1/", server.url.removeprefix("http://")):
            answer = chat(binary, "--url", url, *GREEDY, stdin="Hello!\nWhat is 7 plus 5?\n")
            assert answer.returncode == 0, answer.stderr
            assert answer.stdout == alone.stdout != ""
        long = chat(binary, "--url", server.url, stdin="one two three " * 20_000 + "\n")
        assert "context is full: /new starts over" in long.stderr
        unknown = chat(binary, "--url", server.url, "no-such-model", stdin="Hello!\n")
        assert "no-such-model" in unknown.stderr and unknown.returncode == 1
    gone = chat(binary, "--url", server.url, stdin="Hello!\n")
    assert gone.returncode == 1
    assert f"cannot reach {server.url}/v1" in gone.stderr


def test_a_server_with_keys_wants_one(binary, start):
    with start("--api-key", "secret") as server:
        without = chat(binary, "--url", server.url, stdin="Hello!\n")
        assert without.returncode == 1 and "key" in without.stderr.lower()
        with_key = chat(binary, "--url", server.url, *GREEDY, stdin="Hello!\n", THRONG_API_KEY="secret")
        assert with_key.stdout.strip(), with_key.stderr


def test_flags_of_loading_make_no_sense_with_a_server(binary):
    answer = chat(binary, "--url", "http://127.0.0.1:1", "--threads", "2")
    assert answer.returncode == 2
    assert "--url" in answer.stderr and "--threads" in answer.stderr


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command, columns=0, **variables):
        self.master, slave = pty.openpty()
        if columns:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm", **variables}
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.shown = ""

    def write(self, text):
        os.write(self.master, text.encode())

    def read_until(self, pattern, n=1):
        """Reads until the pattern has been shown n times."""
        until = time.monotonic() + LIMIT_S
        while len(re.findall(pattern, self.shown)) < n:
            ready, _, _ = select.select([self.master], [], [], max(0, until - time.monotonic()))
            assert ready, f"{pattern!r} never came: {self.shown!r}"
            self.shown += os.read(self.master, 1 << 16).decode(errors="replace")

    def end(self):
        status = self.process.wait(LIMIT_S)
        os.close(self.master)
        return status


#: What stands before a line, with and without colours.
PROMPT = r">(\x1b\[0m)? "
STATISTICS = r"\[\d+ tokens, \d+ tokens/s, first after [^\]]*\]"


def test_a_terminal_has_colours_history_and_pasted_lines(binary, tmp_path):
    terminal = Terminal([binary, "chat", *GREEDY], XDG_STATE_HOME=str(tmp_path), NO_COLOR="")
    terminal.read_until("Chatting with throng-starter")
    terminal.read_until(PROMPT)
    assert "\x1b[2m" in terminal.shown
    terminal.write("\x1b[200~first line\nsecond line\x1b[201~\r")
    terminal.read_until(STATISTICS)
    # The arrow recalls the two lines as one message.
    terminal.write("\x1b[A\r")
    terminal.read_until(STATISTICS, 2)
    terminal.write("/exit\r")
    assert terminal.end() == 0
    history = (tmp_path / "throng/chat_history").read_text()
    assert "first line\\nsecond line" in history
    assert len(re.findall(STATISTICS, terminal.shown)) == 2, "a paste is one message"


def test_no_color_is_obeyed(binary, tmp_path):
    terminal = Terminal([binary, "chat", *GREEDY], XDG_STATE_HOME=str(tmp_path), NO_COLOR="1")
    terminal.read_until("Chatting with throng-starter")
    assert "\x1b[2m" not in terminal.shown
    terminal.read_until(PROMPT)
    terminal.write("/exit\r")
    assert terminal.end() == 0


def leaves_at_the_second_ctrl_c(terminal):
    terminal.write("\x03")
    # Between two lines the terminal does not give keys to the program.
    terminal.read_until(rf"Ctrl-D or /exit leaves[\s\S]*{PROMPT}")
    assert terminal.process.poll() is None
    terminal.write("\x03")
    assert terminal.end() == 130


def test_ctrl_c_ends_no_chat(binary, tmp_path):
    terminal = Terminal([binary, "chat"], XDG_STATE_HOME=str(tmp_path), NO_COLOR="1")
    terminal.read_until(PROMPT)
    terminal.write("Tell me about the sea.\r")
    # The answer is short: it may have ended before the signal comes.
    terminal.read_until(r"2004l\r\n[\s\S]*[a-z]{3}")
    terminal.process.send_signal(signal.SIGINT)
    terminal.read_until(rf"(\[stopped\]|{STATISTICS})[\s\S]*{PROMPT}")
    assert terminal.process.poll() is None
    leaves_at_the_second_ctrl_c(terminal)


class Endless(http.server.BaseHTTPRequestHandler):
    """A server whose answers do not end, or do not begin."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = b'{"data": [{"id": "endless"}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.flush()
        self.server.asked.set()
        piece = json.dumps({"choices": [{"delta": {"content": "word "}}]})
        while not self.server.over.wait(0.01):
            if self.server.speaks:
                try:
                    self.wfile.write(f"data: {piece}\n\n".encode())
                except OSError:
                    self.server.left.set()
                    return


@pytest.fixture(params=[True, False], ids=["speaks", "is silent"])
def endless(request):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    server.daemon_threads, server.speaks = True, request.param
    server.asked, server.left, server.over = threading.Event(), threading.Event(), threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()


def test_ctrl_c_stops_the_answer_of_a_server(binary, endless, tmp_path):
    url = f"http://127.0.0.1:{endless.server_port}"
    terminal = Terminal([binary, "chat", "--url", url], XDG_STATE_HOME=str(tmp_path), NO_COLOR="1")
    terminal.read_until(PROMPT)
    terminal.write("Hello!\r")
    assert endless.asked.wait(LIMIT_S)
    if endless.speaks:
        terminal.read_until("word word")
    terminal.process.send_signal(signal.SIGINT)
    words = r"\[stopped\]" if endless.speaks else r"\[stopped before the answer began\]"
    terminal.read_until(rf"{words}[\s\S]*{PROMPT}")
    if endless.speaks:
        assert endless.left.wait(LIMIT_S), "the request ends as well"
    leaves_at_the_second_ctrl_c(terminal)


def test_lines_are_broken_between_words(binary, tmp_path):
    terminal = Terminal([binary, "chat"], columns=40, XDG_STATE_HOME=str(tmp_path), NO_COLOR="1")
    terminal.read_until(PROMPT)
    said = terminal.shown.replace("\r\n", "\n").split("throng-starter is a toy")[1].split("\x1b")[0]
    assert all(len(line) <= 40 for line in said.split("\n")[1:]), said
    assert "a small model trained from scratch" in " ".join(said.split())
    terminal.write("/exit\r")
    assert terminal.end() == 0
