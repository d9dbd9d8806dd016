"""Regular expressions that users write.

Python's own engine tries every way to match, and a pattern such as `(a+)+$` keeps it busy for ever,
and the operator with it. pydantic's, the Rust crate `regex`, takes time in proportion to the text.
Its syntax is that of RE2, which the API server's own rules use.
"""

from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, core_schema


def search(expression: str, text: str) -> bool:
    """Whether a valid expression matches somewhere in a text."""
    return _compiled(expression).isinstance_python(text)


def valid(expression: str) -> str:
    """Return an expression that can be searched for.

    Raises:
        ValueError: it is none; the text says what is wrong.
    """
    try:
        _compiled(expression)
    except SchemaError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"not a regular expression (RE2's syntax): {reason}") from None
    return expression


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> SchemaValidator:
    schema = core_schema.str_schema(pattern=expression, regex_engine="rust-regex")
    return SchemaValidator(schema)
