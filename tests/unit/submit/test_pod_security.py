import pytest
from ddp_client.pod_security import PodSecurity

ENFORCE = "pod-security.kubernetes.io/enforce"


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({}, None),
        ({f"{ENFORCE}-version": "v1.30", "other": "restricted"}, None),
        ({ENFORCE: "baseline"}, PodSecurity("baseline")),
        (
            {ENFORCE: "restricted", f"{ENFORCE}-version": "v1.30"},
            PodSecurity("restricted", "v1.30"),
        ),
        ({ENFORCE: "Privileged"}, PodSecurity("restricted")),  # as the API server takes it
    ],
)
def test_level_in_the_labels_of_a_namespace(
    labels: dict[str, str], found: PodSecurity | None
) -> None:
    assert PodSecurity.of_labels(labels) == found
