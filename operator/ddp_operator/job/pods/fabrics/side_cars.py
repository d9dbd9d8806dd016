"""Images of the daemons that some fabrics run beside the trainer."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

# A name with a tag or digest: without one, the image could differ from pod to pod.
_Image = Annotated[
    str,
    Field(
        max_length=512,
        pattern=r"^[a-z0-9][-a-zA-Z0-9._/:]*(:[a-zA-Z0-9_][-a-zA-Z0-9._]*|@sha256:[0-9a-f]{64})$",
    ),
]


class SideCars(BaseModel):
    """The image of each fabric's daemon.

    Versions of https://github.com/GoogleCloudPlatform/container-engine-accelerators at 992db812
    (June 2026). A daemon must match the plugin on the nodes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tcpx: _Image = "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpx/tcpgpudmarxd-dev:v2.0.12"
    tcpxo: _Image = "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.21"

    @classmethod
    def read(cls, data: Mapping[str, str]) -> Self:
        """Read images from a ConfigMap's data, by fabric. Others keep their default.

        Raises:
            ValueError: an entry names no fabric with a side car, or no image; lists each.
        """
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            raise ValueError("; ".join(_explain(p["type"], p["loc"]) for p in problems)) from None


DEFAULT_SIDE_CARS = SideCars()


def _explain(kind: str, where: tuple[int | str, ...]) -> str:
    name = f"data.{'.'.join(map(str, where))}"
    if kind == "extra_forbidden":
        return f"{name}: not a fabric with a side car; choose {' or '.join(SideCars.model_fields)}"
    return f"{name}: not an image with a tag or digest, such as {DEFAULT_SIDE_CARS.tcpxo}"
