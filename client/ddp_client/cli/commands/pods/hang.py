"""Asks the launchers of a running job where its ranks are: `kubectl ddp why NAME --hang`."""

import asyncio
from collections.abc import Sequence
from typing import Final

from ddp_operator.api import ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.api.values.text import clean
from ddp_operator.hang.evidence import RankEvidence, Room, TooMuchError, TracesAnswer, read
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Key

from ddp_client.cli.app import fetch
from ddp_client.remote.channels import each_of
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.launcher import NoAnswerError, ask_launcher
from ddp_client.views import live_hang as view
from ddp_client.views.refused import RefusedError

_MOST_PODS: Final = 256
"""As the operator: a part of a larger job would mislead."""
_SECONDS: Final = 25.0
"""Time for a pod to answer; other requests for stacks have twelve seconds, its ranks ten."""
_APART_SECONDS: Final = 5.0
"""Between two looks; collectives of a training that works take less."""


async def look(cluster: Cluster, key: Key) -> view.LiveHang:
    """Ask all launchers, twice if a rank seems to keep the others waiting.

    Raises:
        RefusedError: the job's launchers cannot be asked.
    """
    job, pods = await fetch(cluster, key)
    chosen, parsed = pods.of_ranks(job, ()), job.parsed
    if parsed is None:
        raise RefusedError(f"--hang: cannot tell which pod has which rank: {job.problem}")
    if len(chosen) < len(job.slots):
        raise RefusedError(
            f"--hang: {len(chosen)} of {len(job.slots)} pods exist, so ranks wait for the others: "
            f"run kubectl ddp why {key.name}"
        )
    if len(chosen) > _MOST_PODS:
        raise RefusedError(
            f"--hang asks at most {_MOST_PODS} pods, the job has {len(chosen)}: use kubectl ddp "
            f"stacks {key.name} --rank, or set spec.progressDeadlineSeconds"
        )

    async def ask_all() -> Sequence[view.PodAnswer]:
        room = Room()
        return await each_of(chosen, lambda pod: _ask(cluster, parsed, pod, room))

    try:
        answers = await ask_all()
        first = view.first_look(answers)
        if first.ranks:
            await asyncio.sleep(_APART_SECONDS)
            answers = await ask_all()
        return view.second_look(first, answers, _APART_SECONDS)
    except TooMuchError as error:
        raise RefusedError(f"--hang: {error}; see kubectl ddp stacks {key.name} --rank") from None


async def _ask(cluster: Cluster, job: DDPJob, pod: PodState, room: Room) -> view.PodAnswer:
    own, name = ranks.ranks(job.spec, pod.identity.index), pod.key.name
    if not pod.started or pod.exit:
        problem = "its pod has ended" if pod.exit else "its pod has not started"
        return view.PodAnswer(name, pod.node, [*map(RankEvidence, own)], problem)
    try:
        answer = await ask_launcher(
            cluster,
            pod.key,
            pod.container,
            "/traces",
            method="GET",
            limit_bytes=TracesAnswer.MAX_BYTES,
            seconds=_SECONDS,
        )
    except NoAnswerError as error:
        problem = "" if error.silent else clean(error, 200)
        return view.PodAnswer(name, pod.node, read(str(error), own, room), problem)
    return view.PodAnswer(name, pod.node, read(answer, own, room))
