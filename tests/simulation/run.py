"""How often each action happens, and how a history of them runs.

An action that finds nothing to act on does nothing. The first option of each of its choices is the
plainest one, since histories shrink towards it.
"""

import logging
from collections.abc import Callable

from tests.simulation.actions import cluster, evictions, lasting, nodes, pods
from tests.simulation.actions import users as user
from tests.simulation.checks.convergence import converge
from tests.simulation.checks.invariants import Invariants
from tests.simulation.history import Choices, spec_choices, steps
from tests.simulation.simulation import Simulation
from tests.simulation.world.admission import MUTATIONS
from tests.simulation.world.fleet import FLEETS, REQUESTS

Action = Callable[[Simulation, Choices], None]

_PAUSES = (0.05, 1.0, 0.0, 4.0, 15.0, 0.01)
"""Seconds between two steps; short ones leave the operator's writes under way."""

_WEIGHTS: tuple[tuple[Action, int], ...] = (
    (cluster.time_passes, 7),
    (cluster.the_operators_clock_jumps, 4),
    (pods.pods_progress, 28),
    (nodes.a_node_says_something, 6),
    (pods.training_proceeds, 14),
    (pods.training_hangs, 5),
    (pods.checkpoints_are_wiped, 1),
    (pods.a_trainer_exits, 11),
    (pods.a_container_cannot_start, 2),
    (pods.processes_end_in_their_pod, 16),
    (pods.launchers_are_cut_off, 6),
    (pods.late_orders_reach_launchers, 3),
    (pods.launchers_stop_waiting, 3),
    (pods.a_trainer_takes_its_peers_along, 8),
    (pods.training_ends_well, 4),
    (evictions.a_pod_is_evicted, 11),
    (evictions.a_person_deletes_a_pod, 7),
    (evictions.finished_pods_are_collected, 4),
    (evictions.terminating_pods_go, 12),
    (nodes.pods_do_not_start, 6),
    (nodes.a_node_dies, 6),
    (nodes.dead_nodes_come_back, 8),
    (cluster.the_operator_crashes, 11),
    (cluster.requests_fail, 11),
    (cluster.quota_is_used_up, 4),
    (cluster.webhooks_change_pods, 2),
    (cluster.scheduling_gates_are_removed, 2),
    (cluster.other_tenants_come_and_go, 3),
    (cluster.a_network_policy_cuts_off_the_operator, 3),
    (cluster.the_namespace_goes_away, 1),
    (cluster.a_watch_has_trouble, 8),
    (user.the_job_is_suspended, 4),
    (user.the_job_is_resumed, 8),
    (user.the_template_changes, 3),
    (user.the_budget_changes, 2),
    (user.the_isolation_changes, 3),
    (user.a_pattern_gets_a_typo, 1),
    (user.the_job_is_deleted, 3),
    (user.garbage_is_collected, 5),
    (user.a_foreign_pod_takes_a_name, 2),
    (user.a_job_is_applied, 6),
    (nodes.nobody_hears_of_any_node, 2),
)

_LASTING_FAULTS = (*[lasting.NOTHING_LASTS] * len(lasting.LASTING_FAULTS), *lasting.LASTING_FAULTS)
"""After half of all histories nothing lasts."""

_ADMISSION = (*[MUTATIONS[0]] * len(MUTATIONS), *MUTATIONS)
_TOTAL_STEPS = (None, None, 1, 10)
"""Half of all trainings have an end that is known, and scripts work on after it."""

_TABLE: tuple[Action, ...] = tuple(action for action, weight in _WEIGHTS for _ in range(weight))
"""The action of each byte; more bytes for what happens more often."""

assert len(_TABLE) == 256, f"weights must sum to 256, not {len(_TABLE)}"


class _BugReports(logging.Handler):
    """The engine survives every error and logs it: here each one is a violation."""

    def __init__(self, invariants: Invariants) -> None:
        super().__init__(logging.ERROR)
        self._invariants = invariants

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._invariants.require(False, f"{record.getMessage()}: {error!r}")


def run(history: bytes) -> Simulation:
    """Run one history; raises `AssertionError` with its events when something is wrong."""
    simulation = Simulation()
    reports = _BugReports(simulation.invariants)
    logger = logging.getLogger("ddp_operator")
    level = logger.level
    logger.setLevel(logging.ERROR)
    logger.addHandler(reports)
    try:
        choices = spec_choices(history)
        spec = user.new_spec(choices)
        simulation.lasting_fault = choices.of(_LASTING_FAULTS)
        simulation.use(choices.of(FLEETS))
        simulation.gpu_request = choices.of(REQUESTS)
        simulation.training.total_steps = choices.of(_TOTAL_STEPS)
        what, simulation.server.mutate = choices.of(_ADMISSION)
        simulation.log(f"the cluster has {simulation.server.fleet.name}; admission adds {what}")
        user.apply(simulation, spec)
        for number, choices in steps(history):
            simulation.steps += 1
            _TABLE[number](simulation, choices)
            simulation.advance(choices.of(_PAUSES))
            simulation.check()
        converge(simulation)
    finally:
        logger.removeHandler(reports)
        logger.setLevel(level)
        if simulation.operator is not None:
            simulation.operator.kill()
    return simulation
