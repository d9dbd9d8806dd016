"""All loops, from the modules that have them."""

from tests.trainer.habits import around, batches, fine_tuning, models, objectives, optimizing
from tests.trainer.habits.registry import LOOPS

__all__ = ["LOOPS", "around", "batches", "fine_tuning", "models", "objectives", "optimizing"]
