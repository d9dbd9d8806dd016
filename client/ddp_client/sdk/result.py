"""The result of a job, for programs and notebooks."""

from importlib import import_module
from typing import Any

from ddp_operator.api.values.text import clean

from ddp_client.sdk.errors import ClientError
from ddp_client.views.result import Result


class JobResult(Result):
    """The result of a job until now: last numbers, best score, newest checkpoint and curve."""

    def to_dataframe(self) -> Any:
        """Return the curve as a pandas DataFrame with the columns step, loss and accuracy.

        Raises:
            ClientError: pandas cannot be imported.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise ClientError(
                f"to_dataframe() needs pandas ({clean(error, 80)}): pip install pandas, or use the "
                "rows of the result"
            ) from None
        frame = pandas.DataFrame(list(self.rows), columns=["step", "loss", "accuracy"])
        return frame.astype({"step": int, "loss": float, "accuracy": float})
