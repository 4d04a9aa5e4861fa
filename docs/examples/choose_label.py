"""A choice among labels: the exact probability of each label, without sampling."""

import smc

lm = smc.TransformersLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
prompt = """Review: I loved every minute of it. Sentiment: positive
Review: It took two hours to get there. Sentiment: neutral
Review: The soup was cold and the waiter was rude. Sentiment:"""
(found,) = smc.choose(lm, [prompt], [" positive", " negative", " neutral"])
for label, probability, (low, high) in zip(
    found.options, found.probabilities, found.intervals, strict=True
):
    print(f"{label.strip()}: {probability:.3f} (between {low:.3f} and {high:.3f})")
print("most probable label:", found.best.strip())
