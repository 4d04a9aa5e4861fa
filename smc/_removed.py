"""Public names and arguments (with `=`) that were removed, and what to do instead, until 0.4."""

from __future__ import annotations

REMOVED = {
    "BudgetBatchProcessor": "use smc.BudgetLogitsProcessor or smc.generate in model.generate",
    "DenseGuide": "return smc.Factors.dense(log_g) from guide; the sampler computes log Z",
    "Drafter": "prompt lookup guesses the draft tokens",
    "PromptLookup": "prompt lookup is the only drafter; omit it",
    "Guide": "guide returns a smc.Factors",
    "Part": "use smc.sample_async",
    "drafter=": "omit it; prompt lookup guesses the draft tokens",
    "max_particles=": "pass particles",
    "target_error=": "double particles until posterior.reliability.log_evidence_error is small "
    "enough, then sample once more with another seed",
    "potential=": "set the attribute `potential` of the proposal",
    "stream": "use smc.sample_async",
    "top_p=": "pass it to model.generate, with custom_generate=smc.generate(...)",
    "TiedGuide": "return its smc.Factors from guide; the sampler computes log Z",
    "score=": "return smc.Factors with `defense` from guide",
    "Walk": "use smc.AutomatonPosition",
}
