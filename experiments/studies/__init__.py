"""Studies of the samplers themselves: distance to exact posteriors, and time per step.

Unlike the other tasks, these read no records and score no answers.
"""
