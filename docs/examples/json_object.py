"""JSON by a schema: several finished answers, and the probability of each."""

import gcd
import smc

lm = smc.TransformersLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
schema = {
    "type": "object",
    "properties": {"item": {"type": "string"}, "price": {"type": "integer", "minimum": 0}},
    "required": ["item", "price"],
    "additionalProperties": False,
}
prompt = """The red chair costs 20 dollars.
{"item":"chair","price":20}
The old table costs 45 dollars.
"""
constraint = gcd.lift(gcd.json_schema(schema), lm.vocabulary, literals="canonical")
(posterior,) = smc.sample(
    lm, [prompt], constraint, max_tokens=20, particles=3, algorithm="discrete", proposal=smc.GCD()
)
for text, probability, (low, high) in zip(
    posterior.texts, posterior.probabilities, posterior.confidence_intervals, strict=True
):
    print(f"{probability:.2f} ({low:.2f} to {high:.2f}) {text}")
print("best:", posterior.best)
