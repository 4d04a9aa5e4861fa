"""Studies of the samplers themselves: time per step.

Unlike the other tasks, these read no records and score no answers.
"""
