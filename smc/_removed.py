"""Public names and arguments (with `=`) that were removed, and what to do instead, until 0.4."""

from __future__ import annotations

REMOVED = {
    "BudgetBatchProcessor": "use smc.BudgetLogitsProcessor or smc.generate in model.generate",
}
