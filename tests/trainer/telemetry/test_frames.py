"""Stacks are read as Python writes them, and always in linear time."""

import faulthandler
import tempfile
import threading

from ddp_trainer.telemetry.requests.frames import parse


def test_dump_of_python_is_parsed() -> None:
    started, done = threading.Event(), threading.Event()

    def wait_in_a_thread() -> None:
        started.set()
        done.wait()

    other = threading.Thread(target=wait_in_a_thread)
    other.start()
    started.wait()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        done.set()
        other.join()
        file.seek(0)
        threads = parse(file.read())
    assert [stack[0][2] for stack in threads[:1]] == ["test_dump_of_python_is_parsed"]
    assert threads[0][0][0] == __file__
    assert any("wait_in_a_thread" in {frame[2] for frame in stack} for stack in threads[1:])


def test_thread_names_and_c_stacks_are_ignored() -> None:
    text = (
        "Thread 0x00007f00 [loader] (most recent call first):\n"
        '  File "a.py", line 3 in b\n'
        "Current thread 0x00007f01 (most recent call first):\n"
        '  File "/x y.py", line ??? in <module>\n'
        "  ...\n\n"
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/usr/bin/python", at _Py_Dump+0x1\n'
    )
    assert parse(text) == [[("/x y.py", "???", "<module>")], [("a.py", "3", "b")]]


def test_hostile_stacks_are_bounded() -> None:
    # Python's own expressions took minutes for a line of hexadecimal digits without an end.
    head = "Current thread 0x"
    assert parse(head + "a" * 1_000_000) == []
    frames = '  File "a", line 1 in b\n' * 10_000
    [stack] = parse(f"{head}1:\n" + frames)
    assert len(stack) == 128
    assert len(parse(f"{head}1:\n" * 10_000)) == 1024
    long = "x" * 10_000
    [[frame]] = parse(f'{head}1:\n  File "{long}", line 1 in {long}\n')
    assert max(map(len, frame)) == 300
