"""Values of wrong types give an error message, never a traceback."""

from copy import deepcopy

from ddp_client.convert import ConversionError, of_manifests
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.convert.examples import JOBSET, PYTORCHJOB, RUNTIME, TRAINJOB, dump, load
from tests.unit.convert.test_nothing_lost import Path, at

EXAMPLES = [[load(PYTORCHJOB)], [load(JOBSET)], [load(TRAINJOB), load(RUNTIME)]]
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text("a:/$-\n", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "spec", "containers", "env", "a"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


def places(value: object, path: Path = ()) -> list[Path]:
    inner: list[Path] = [path] if len(path) > 1 else []
    if isinstance(value, dict):
        return inner + [p for k, v in value.items() for p in places(v, (*path, k))]
    if isinstance(value, list):
        return inner + [p for n, v in enumerate(value) for p in places(v, (*path, n))]
    return inner


@given(data=st.data())
def test_any_value_anywhere(data: st.DataObject) -> None:
    documents = deepcopy(data.draw(st.sampled_from(EXAMPLES)))
    path = data.draw(st.sampled_from(places(documents)))
    at(documents, path[:-1])[path[-1]] = data.draw(ODD)
    try:
        found = of_manifests(dump(documents))
    except ConversionError:
        return  # an error of the whole file, such as a number that is too long
    for one in found:
        assert one.manifest is None or one.problem == ""
