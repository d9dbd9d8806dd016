import contextlib
import json
import pickle
import pickletools
import tracemalloc
from typing import Any

import pytest
from ddp_trainer.flight_recorder import dump as dumps
from ddp_trainer.flight_recorder.dump import DumpError, reduce_dump
from ddp_trainer.flight_recorder.unpickle import BadPickleError, unpickle
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hang.traces.recorder import Call, Form, Ranks

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
    ),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([2, 3, 4, 5]))
def test_plain_data_is_read_like_python_does(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert unpickle(data) == pickle.loads(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadPickleError):
        unpickle(b"\x80\x02" + data)


@given(VALUES, st.data())
def test_damaged_pickles_are_read_or_refused(value: object, data: st.DataObject) -> None:
    changed = bytearray(pickle.dumps(value, 2))
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadPickleError):
        unpickle(bytes(changed))


def test_every_opcode_beyond_plain_data_is_refused() -> None:
    plain = {chr(code) for code in unpickle.__globals__["_OPCODES"]} | {"."}
    others = {each.code for each in pickletools.opcodes} - plain
    assert {"c", "R", "i", "o", "b", "P", "Q", "\x81", "\x82", "\x92", "\x93"} <= others
    for code in others:
        with pytest.raises(BadPickleError):
            unpickle(b"\x80\x02" + code.encode("latin-1") + b"os\nsystem\n(X\x02\x00\x00\x00idtR.")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cut off"),
        (b"\x80\x02X\xff\xff\xff\x7fabc", "cut off"),
        (b"\x80\x02(((" + b"(" * 40 + b".", "nested"),
        (b"\x80\x02}K\x01K\x02s.", "key"),
        (b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".", "too large"),
        (b"\x80\x02j\x00\x00\x00\x00.", "more than containers"),
        (b"\x80\x02].K\x01a", ""),
        (b"\x80\x02K\x01K\x02a.", "no container"),
        (b"\x80\x02](K\x01(ee.", "no container"),
    ],
)
def test_hostile_pickles_get_a_reason(data: bytes, said: str) -> None:
    if not said:
        assert unpickle(data) == []
        return
    with pytest.raises(BadPickleError, match=said):
        unpickle(data)


def test_a_pickle_of_endless_opcodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(unpickle.__globals__, "MAX_OPCODES", 1000)
    with pytest.raises(BadPickleError, match="1000 opcodes"):
        unpickle(b"\x80\x02" + b"}" * 2000)


def test_large_memo_indexes_take_no_memory() -> None:
    # Python's own unpickler reserves 32 GiB for this.
    assert unpickle(b"\x80\x02]r\xff\xff\xff\x7f.") == []


class Exploit:
    def __reduce__(self) -> Any:
        return print, ("executed",)


def test_objects_are_never_created(capsys: pytest.CaptureFixture[str]) -> None:
    content = {"version": "2.9", "entries": [Exploit()]}
    for protocol in range(6):
        with pytest.raises(DumpError):
            reduce_dump(pickle.dumps(content, protocol))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "JSON"),
        (b"[" * 100, "neither"),
        (b'{"a":' * 100_000, "JSON"),
        (b'{"version": "1.5", "entries": []}', "1.5"),
        (b'{"entries": []}', "names no format"),
        (b'{"version": "2.9", "entries": 3}', "entries"),
        (b'{"version": "2.9", "pg_status": 3}', "no dump"),
        (pickle.dumps([1, 2]), "no dump"),
        (pickle.dumps({"version": "2.9"})[:-4], "cut off"),
        (b"text of a log", "neither"),
    ],
)
def test_other_files_get_a_reason(data: bytes, said: str) -> None:
    with pytest.raises(DumpError, match=said):
        reduce_dump(data)


def test_large_dumps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "MAX_BYTES", 10)
    with pytest.raises(DumpError, match="larger"):
        reduce_dump(b"{" + b" " * 10)
    many = {str(number): {"desc": "x" * 200, "ranks": "[0]"} for number in range(40)}
    monkeypatch.setattr(dumps, "MAX_BYTES", 100_000)
    with pytest.raises(DumpError, match="too many groups"):
        reduce_dump(json.dumps({"version": "2.9", "pg_config": many}).encode())
    monkeypatch.setattr(dumps, "MAX_OPCODES", 10)
    with pytest.raises(DumpError, match="10 values"):
        reduce_dump(b'{"entries": [1,1,1,1,1,1,1,1,1,1]}')


JUNK = (
    st.none()
    | st.text(max_size=9)
    | st.text("-0123456789", max_size=5)
    | st.integers()
    | st.lists(st.integers(), max_size=3)
)


@given(st.data())
def test_fields_of_any_type_are_read_or_refused(data: st.DataObject) -> None:
    ranks = Ranks.same({"0": (0, 1)}, [Call("0")]).run()
    content = json.loads(ranks.dump(0, Form(as_json=True)))
    for part in (content, content["entries"][0], content["pg_config"]["0"]):
        part[data.draw(st.sampled_from(sorted(part)))] = data.draw(JUNK)
    with contextlib.suppress(DumpError):
        reduce_dump(json.dumps(content).encode())


def test_pickle_and_json_are_equal() -> None:
    ranks = Ranks.same({"0": (0, 1), "1": (0, 1)}, [Call("0"), Call("1", size=8)]).run()
    assert reduce_dump(ranks.dump(0, Form())) == reduce_dump(ranks.dump(0, Form(as_json=True)))


def test_newest_group_of_a_name_is_used() -> None:
    ranks = Ranks.same({"0": (0, 1)}, [Call("0")] * 3).run()
    content = json.loads(ranks.dump(0, Form(as_json=True)))
    content["entries"][2] |= {"pg_id": 5, "collective_seq_id": 1}
    assert seqs(reduce_dump(json.dumps(content).encode())) == [1]


def seqs(reduced: dict[str, Any]) -> list[int]:
    [group] = reduced["groups"]
    return [seq for seq, *_ in group["collectives"]]


def test_newest_operations_of_each_group_are_kept() -> None:
    ranks = Ranks.same({"0": (0, 1)}, [Call("0")] * 30, ahead=20)
    ranks.hosts[1] = 10
    assert seqs(reduce_dump(ranks.run().dump(0))) == [7, 8, 9, 10, 11, 12, 13, 14, 30]


def test_ranks_of_a_group_are_shown_as_spans() -> None:
    members = [(0, 1, 2, 3), (0, 8, 16, 24, 25, 26), (5, 3, 1, 0), (7,)]
    for ranks in members:
        content = Ranks.same({"0": ranks}, [Call("0")]).run().dump(ranks[0])
        [group] = reduce_dump(content)["groups"]
        spans = group["ranks"]
        assert len(spans) < 3
        shown = [at + step * i for at, step, count in spans for i in range(count)]
        assert tuple(shown) == ranks


def entry(number: int, sizes: object, dtypes: object) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "d"),
        "collective_seq_id": number,
        "input_sizes": sizes,
        "input_dtypes": dtypes,
        "output_sizes": sizes,
        "profiling_name": "nccl:all_reduce",
        "state": "scheduled",
    }


def peak_megabytes(data: bytes) -> float:
    """Return the memory that reducing a dump takes; the result is small, or the dump refused."""
    tracemalloc.start()
    try:
        with contextlib.suppress(DumpError):
            assert len(json.dumps(reduce_dump(data))) <= dumps._MOST_REDUCED
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def test_shared_lists_take_no_memory() -> None:
    """A pickle of 32 KB needed a gigabyte when each reference was expanded."""
    sizes, dtypes = [[1] * 16] * 4096, ["Float"] * 4096
    entries = [entry(number, sizes, dtypes) for number in range(600)]
    data = pickle.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": entries})
    assert len(data) < 100_000
    assert peak_megabytes(data) < 16
    [call] = reduce_dump(data)["calls"]
    assert (call["elements"], call["dtypes"]) == (4096, "Float")
    assert call["shapes"].endswith(" and 4092 more")


def test_numbers_of_any_size_and_text_are_read() -> None:
    sizes = [[2**62] * 4096]
    assert reduce_dump(b'{"version": "2.1", "entries": [{"record_id": "--5"}]}')["groups"]
    large = entry(2**70, sizes, ["x" * 10_000]) | {"time_created_ns": 10**400}
    found = reduce_dump(json.dumps({"version": "2.1", "entries": [large]}).encode())
    [call] = found["calls"]
    assert call["elements"] == 2**53 - 1
    assert max(map(len, (call["dtypes"], call["shapes"]))) < 250


@st.composite
def bombs(draw: st.DrawFn) -> bytes:
    """Small pickles with lists that refer to each other many times."""
    nested: object = draw(st.sampled_from([1, 2**60, "Float", None]))
    for _ in range(draw(st.integers(1, 5))):
        nested = [nested] * draw(st.integers(1, 3000))
    count = draw(st.integers(1, 200))
    entries = [
        entry(number, nested, nested) | {"frames": nested, "process_group": (str(number), "d")}
        for number in range(count)
    ]
    return pickle.dumps({"version": "2.10", "pg_status": {}, "entries": entries}, 2)


@given(bombs())
@settings(max_examples=30, deadline=None)
def test_memory_is_bounded_for_any_references(data: bytes) -> None:
    assert peak_megabytes(data) < 16
