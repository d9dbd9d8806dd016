"""Jobs and pods of a user who wants to stop the operator: each call on them stays short and small.

`_Calls` lists the functions of the operator that see such objects. Generated specs have up to
256 KB of anything in any field: long runs of special characters, many items, deep nesting. The test
tries the same specs in each run; `python -m tests.hostile_specs --seconds 3600` tries new ones.
"""

import argparse
import json
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any, Final, cast

import orjson
from ddp_client.views.job.known_errors import known_error
from ddp_operator.api import job as api_job
from ddp_operator.api.command import started
from ddp_operator.api.job import DDPJob
from ddp_operator.api.local_paths import dies_with_pods, local_paths, named_paths
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.values import deep_json
from ddp_operator.api.values.limits import MAX_SPEC_BYTES
from ddp_operator.engine.job_cache import Entry, JobCache
from ddp_operator.engine.metrics import choose, text_of
from ddp_operator.engine.metrics.totals import count_jobs
from ddp_operator.engine.status_patch import as_stored, forgotten, news, status_patch
from ddp_operator.engine.trainers.launcher_pods import leader, pollable
from ddp_operator.engine.trainers.log_progress import read as read_log
from ddp_operator.job.failure import symptoms
from ddp_operator.job.failure.classes import of_pod
from ddp_operator.job.planning.convergence import explain_refusal, report_refusal
from ddp_operator.job.planning.decisions import fail
from ddp_operator.job.planning.places.queue import upkeep
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.planning.rejection import reject
from ddp_operator.job.pods import manifests, multikueue
from ddp_operator.job.pods.access import PodToken
from ddp_operator.job.pods.prerequisites import network_policy, prerequisites
from ddp_operator.job.pods.projection import job_of, project
from ddp_operator.job.pods.state import Identity
from ddp_operator.job.status.preemption import boosts_of
from ddp_operator.kube.errors import error_from_response
from ddp_operator.kube.events import event_manifest
from ddp_operator.ports import Event, MalformedError
from ddp_protocol.message import InvalidMessageError

from tests.good_manifests import GOOD_MANIFESTS, Json
from tests.unit.cpu_budget import LOOP_SECONDS, loops
from tests.unit.job.builders import later, stored, stored_job

CALL_SECONDS: Final = 0.1
"""Most processor time of a call, on a machine of the speed that `cpu_budget` names."""
CALL_BYTES: Final = 20_000_000
"""Most memory that a call may add."""
POD_BYTES: Final = 40_000
"""Most characters of a pod's state."""

_PIECES: Final = (
    *("/", "/a", "/@", "/a ", "/a@", "../", "./", "a/", "//", "/save", "save ", "/x.pt "),
    *("'", '"', "''", '""', "\\", "\\'", '"\\', "`", "$(", "${a}", "$@", "$0", "$", "(", ")"),
    *(";", "a;", "&&", "|", "\n", "a\n", "\\\n", "#", "A=", "A='", 'A="b ', "=", " ", "\t", "- "),
    *("sh -c ", "sh -c '", "env ", "uv ", "uv run ", "python ", "python -m ", "exec ", "torchrun"),
    *("-", "--", "-c ", "--a=", ",", ":", "[", "]", "{", "}", "a", "a.", "a-", "0", "9", "1-"),
    *(
        "\u00e9",
        "\u2028",
        "\U0001d7d9",
        "\x00",
        "\x1b[",
        "\x1b]",
        "\u202e",
        "aError: ",
        "[rank1]: ",
    ),
    *(
        'violates PodSecurity "a:b": ',
        "a (",
        '"a", ',
        " must set ",
        "; ",
        "Root Cause ",
        "rank : 1 ",
    ),
)
_SIZES: Final = (300, 5_000, 30_000, 60_000, MAX_SPEC_BYTES - 6_000)


def text(random: Random, size: int) -> str:
    """Return runs of one or two pieces, perhaps between others."""
    run, end = random.choice(_PIECES), ""
    if random.random() < 0.5:
        run += random.choice(_PIECES) * random.choice((1, 1, 1, 100))
    if random.random() < 0.5:
        end = random.choice(_PIECES)
    start = random.choice(_PIECES) if random.random() < 0.5 else ""
    return start + run * (max(size - len(start) - len(end), 0) // len(run)) + end


def texts(random: Random, size: int) -> list[str]:
    """Return a list of texts with that many characters together."""
    number = random.choice((1, 2, 16, 500, 1000))
    one = text(random, size // number)
    return [one if random.random() < 0.9 else text(random, size // number) for _ in range(number)]


def many(random: Random, size: int) -> Any:
    """Return any nested value of about that many bytes."""
    match random.randrange(6):
        case 0:
            return [random.choice(([], {}, 0, None, "", {"a": 1}, [[]])) for _ in range(size // 4)]
        case 1:
            return {f"{i:x}": random.choice((0, [], "a")) for i in range(size // 12)}
        case 2:
            inner: Any = 0
            for _ in range(min(size // 8, random.choice((50, 200, 230, 260, 400)))):
                inner = {"a": inner} if random.random() < 0.5 else [inner]
            return inner
        case 3:
            return [[0] * 90 for _ in range(size // 200)]
        case 4:
            return {text(random, size // 2): text(random, size // 2)}
        case _:
            return {"a": texts(random, size)}


def spec(random: Random) -> Json:
    """Return a spec with some fields as large as the whole may be."""
    made: Json = deepcopy(random.choice(list(GOOD_MANIFESTS.values()))["spec"])
    made |= {"replicas": random.choice((1, 2, 2, 2, 8, 1000))} if random.random() < 0.7 else {}
    made |= {"launcher": "inject"} if random.random() < 0.3 else {}
    template = made["template"]
    pod, size, parts = template["spec"], random.choice(_SIZES), random.choice((1, 1, 2, 4))
    trainer = cast(Json, trainer_container(template))
    if random.random() < 0.6:
        pod["volumes"] = [*(pod.get("volumes") or ()), {"name": "own", "emptyDir": {}}]
        trainer["volumeMounts"] = [{"name": "own", "mountPath": random.choice(("/", "/a", "/own"))}]
    for _ in range(parts):
        _enlarge(random, made, pod, trainer, size // parts)
    return made


def _enlarge(random: Random, made: Json, pod: Json, trainer: Json, size: int) -> None:
    template, many_ = made["template"], many(random, size)
    words = texts(random, size)
    places: tuple[Callable[[], Any], ...] = (
        lambda: trainer.update(command=["sh", "-c", *texts(random, size)]),
        lambda: trainer.update(command=[*random.choice((["uv"], ["env"], ["python"])), *words]),
        lambda: trainer.update(command=["sh", "-c", "$@"] * (len(words) % 340), args=words),
        lambda: trainer.update(args=words),
        lambda: trainer.update(env=[{"name": "save", "value": text(random, size)}]),
        lambda: trainer.update(env=[{"name": f"SAVE{i}", "value": w} for i, w in enumerate(words)]),
        lambda: trainer.update(env=[{"name": w[:250]} for w in words]),
        lambda: trainer.update(image=words[0], workingDir=words[-1]),
        lambda: trainer.update(
            volumeMounts=[
                {"name": "own", "mountPath": "/" * (size > 0) + word[:4000]} for word in words[:512]
            ]
        ),
        lambda: trainer.update(
            volumeMounts=[
                {"name": "own", "mountPath": "/a" * random.choice((i, 50))}
                for i in range(1, min(int(size**0.5), 400))
            ],
            env=[{"name": "save", "value": "/a" * (size // 4)}],
        ),
        lambda: trainer.update(resources={"limits": {word[:9000]: "1" for word in words[:32]}}),
        lambda: pod.update(volumes=[{"name": word, "emptyDir": {}} for word in words]),
        lambda: pod.update(tolerations=[{"key": word} for word in words]),
        lambda: pod.update(nodeSelector={word: word[:9] for word in words}),
        lambda: pod.update(affinity={"podAntiAffinity": many_}),
        lambda: pod.update(initContainers=[{"name": w, "command": [w]} for w in words[:64]]),
        lambda: pod.update(priorityClassName=words[0], schedulerName=words[-1]),
        lambda: pod.update({words[0][:5000]: many_}),
        lambda: pod.update(containers=[*pod["containers"], {"name": "b", "x": many_}]),
        lambda: template.update(metadata={"labels": {word: word for word in words}}),
        lambda: template.update(metadata={"annotations": {w: w for w in words}, "x": many_}),
        lambda: template.update(x=many_),
        lambda: made.update({words[0]: many_}),
        lambda: made.update(
            overrides=[
                {"indexes": [str(i % 9)], "template": {"spec": {"x": many(random, size // 8)}}}
                for i in range(random.choice((1, 8)))
            ]
        ),
        lambda: made.update(overrides=[{"indexes": words[:16], "nprocPerNode": 1}]),
        lambda: made.update(accelerator={"type": "nvidia-l4", "reservation": many_}),
        lambda: made.update(
            restart={
                "rules": [
                    {"reasons": [w[:256] for w in words[:32]], "action": "Ignore"}
                    for _ in range(16)
                ]
            }
        ),
        lambda: made.update(
            restart={"rules": [{"messageRegex": w, "action": "Ignore"} for w in words]}
        ),
        lambda: made.update(checkpoint={"path": f"/{words[0]}"[:1024]}),
        lambda: made.update(progress={"logPattern": f"(?P<step>{words[0]})"}),
        lambda: made.update(managedBy=words[0]),
        lambda: made.update(scheduling={"queueName": words[0]}),
    )
    random.choice(places)()


def pod_status(random: Random) -> Json:
    """Return the status of a pod with containers that leave large texts."""
    size = random.choice((4096, 30_000, 200_000))
    ended = {"exitCode": random.choice((1, 137, 255)), "finishedAt": "2026-03-01T12:00:00Z"}
    words = {"reason": text(random, size), "message": text(random, size)}
    waiting = {"reason": "ErrImagePull", "message": text(random, size)}
    state = random.choice(({"terminated": {**ended, **words}}, {"waiting": waiting}))
    others = {"name": text(random, 9), "state": {}, "ready": True}
    condition = {"status": "True", "message": text(random, 9)}
    return {
        "phase": random.choice(("Failed", "Running", "Pending")),
        **words,
        "podIP": random.choice(("10.0.0.1", text(random, size))),
        "containerStatuses": [
            *([others] * random.choice((0, size // 60))),
            {"name": "trainer", "state": state},
        ],
        "conditions": [{"type": f"t{i}", **condition} for i in range(size // 90)],
    }


class _Calls:
    """Everything that the operator does with one job and a pod of it; `made` are the results."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.document = _stored(stored_job(**spec(random)))
        self.cache = JobCache()

    def __iter__(self) -> Iterator[tuple[str, Callable[[], object]]]:
        random, now = self.random, later(60)
        yield "JobCache.put", self._put
        self._put()
        [entry] = self.cache.entries.values()
        yield "Entry.job", lambda: _read_again(entry)
        yield "metrics", lambda: _metrics(entry)
        job = entry.job
        if not isinstance(job, DDPJob):
            yield "reject", lambda: reject(entry.manifest, job, [], now)
            return
        trainer = trainer_container(job.spec.template)
        words = [*(trainer.get("command") or ()), *(trainer.get("args") or ())]
        yield "started", lambda: started(words)
        yield "dies_with_pods", lambda: dies_with_pods(job.spec)
        yield "local_paths", lambda: local_paths(job.spec)
        yield "named_paths", lambda: named_paths(job.spec)
        yield "plan", lambda: plan(job, [], now)
        planned = plan(job, [], now)
        yield "status_patch", lambda: status_patch({}, as_stored(planned.status))
        yield "fail", lambda: fail(job, "InvalidPodTemplate", text(random, 9000), now)
        active = stored(job, planned)
        yield "plan, active", lambda: plan(active, [], now)
        yield "workload", lambda: multikueue.workload(job, 1) if job.spec.kueue_queue else None
        yield "priority_class", lambda: multikueue.priority_class(job)
        yield "network_policy", lambda: network_policy(job, operator_namespace="o")
        yield "prerequisites", lambda: list(prerequisites(active))
        yield "boosts_of", lambda: boosts_of(active, now, most=9)
        yield (
            "pod",
            lambda: manifests.pod(active, Identity(0, 0), token=PodToken(key="k", plain="t")),
        )
        size = random.choice((1000, 50_000, 500_000))
        refusal = (
            f'pods "{job.name}-0-0" is forbidden: violates PodSecurity "a:b": {text(random, size)}'
        )
        yield "explain_refusal", lambda: explain_refusal(active, refusal)
        explained = explain_refusal(active, refusal)
        yield "report_refusal", lambda: report_refusal(active, "PodsForbidden", explained, now)
        body = orjson.dumps({"message": refusal, "details": {"causes": [{"field": "a"}] * 1000}})
        yield "error_from_response", lambda: error_from_response(422, body, retry_after="1")
        yield "event", lambda: event_manifest(entry.manifest, Event("A", refusal), now=now)
        line = json.dumps({"type": "ADDED", "object": self.document}).encode()
        yield "parsed", lambda: deep_json.loads(line)
        yield from self._of_pod(active)

    def _put(self) -> None:
        self.cache = JobCache()
        self.cache.put(self.document)

    def _of_pod(self, job: DDPJob) -> Iterator[tuple[str, Callable[[], object]]]:
        random = self.random
        made = _stored(manifests.pod(job, Identity(0, 0), token=PodToken(key="k", plain="t")))
        made["metadata"] |= {"uid": "p", "resourceVersion": "1"}
        made["status"] = pod_status(random)
        if random.random() < 0.3:
            made["metadata"]["annotations"] = {
                name: text(random, 50_000) for name in made["metadata"]["annotations"]
            }
        yield "job_of", lambda: job_of(made)
        yield "project", lambda: _projected(made)
        state = _projected(made)
        if state is None:
            return
        yield "PodState", lambda: _check_size(state)
        yield "of_pod", lambda: of_pod(state)
        said = text(random, 4096)
        for function in (
            *(
                symptoms.last_words,
                symptoms.is_of_another_rank,
                symptoms.is_of_node,
                symptoms.is_of_service,
            ),
            *(symptoms.is_of_command, symptoms.torchrun_rank, symptoms.headline),
        ):
            plain = function.__wrapped__
            yield plain.__name__, partial(plain, said)
        yield "known_error", lambda: known_error(said)
        yield "plan, pod", lambda: plan(job, [state], later(90))
        after = plan(job, [state], later(90)).status
        yield "news", lambda: (news(job.status, after), forgotten(job.status, after))
        yield "upkeep", lambda: upkeep(job, [state], later(90))
        yield "leader", lambda: leader(job, [state]) if pollable(job) else None
        if job.spec.progress:
            pattern, log = job.spec.progress.log_pattern, text(random, 16_000).encode()
            yield "read_log", lambda: _read_log(pattern, log)


def _stored(document: Json) -> Json:
    """Return a document as an API server sends it: no two fields share a value."""
    stored: Json = json.loads(json.dumps(document))
    return stored


def _read_again(entry: Entry) -> object:
    api_job._unpacked.cache_clear()
    return entry.job


def _metrics(entry: Entry) -> object:
    chosen = choose([entry], limit=10, now=later(60))
    return count_jobs([entry], now=later(60)), text_of(chosen.jobs, now=later(60))


def _projected(manifest: Json) -> Any:
    try:
        return project(manifest)
    except MalformedError:
        return None


def _check_size(state: object) -> None:
    size = len(repr(state))
    assert size < POD_BYTES, f"a pod's state has {size} characters"


def _read_log(pattern: str, log: bytes) -> object:
    try:
        return read_log(pattern, log)
    except InvalidMessageError:
        return None


def problems(seed: int) -> Iterator[str]:
    """Make the calls of one seed. Say which of them raise, or take too long or too much memory."""
    for name, call in _Calls(Random(seed)):
        tracemalloc.start()
        try:
            call()
        except Exception as error:
            yield f"seed {seed}: {name} raises {type(error).__name__}: {str(error)[:200]}"
            tracemalloc.stop()
            continue
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if peak > CALL_BYTES:
            yield f"seed {seed}: {name} takes {peak / 1e6:.0f} MB"
        began = time.thread_time()
        call()
        if time.thread_time() - began > CALL_SECONDS / 2:
            took = loops(call) * LOOP_SECONDS
            if took > CALL_SECONDS:
                yield f"seed {seed}: {name} takes {took:.2f} s"


def main() -> None:
    """Check new seeds for some time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, help="the first seed")
    given = parser.parse_args()
    seed = first = given.seed if given.seed is not None else int(time.time()) * 10**6
    ends = time.monotonic() + given.seconds
    while time.monotonic() < ends:
        for problem in problems(seed):
            print(problem, flush=True)
        seed += 1
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{seed - first} specs from seed {first}: {memory} kB")


if __name__ == "__main__":
    main()
