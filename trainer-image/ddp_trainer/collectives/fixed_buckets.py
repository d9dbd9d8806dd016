"""DistributedDataParallel whose gradient buckets stay as they are from the first pass on.

torch lays its buckets out after the first pass, in the order in which gradients came. The layout
decides in which order the numbers of more than two ranks are added. So the first step of a group
would round differently from the same step in a group that has trained before.
"""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel


class FixedBuckets(DistributedDataParallel):
    """Lays its buckets out before any pass: the last parameters first, as gradients usually come.

    With `find_unused_parameters`, torch keeps its first layout, and so does this. For a static
    graph, torch lays out the first parameters first, so that the exchange begins only after the
    pass: there, more than two ranks round as without a static graph.
    """

    def _build_params_for_reducer(self) -> Any:
        parameters, are_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        if self.find_unused_parameters:
            return parameters, are_sparse
        return parameters[::-1], are_sparse[::-1]

    def lay_out(self) -> None:
        """Agree on the buckets with the other ranks, once; a collective.

        Raises:
            Exception: the group broke.
        """
        self.reducer._push_all_rebuilt_params()  # neither does anything the second time
        self.reducer._rebuild_buckets()
