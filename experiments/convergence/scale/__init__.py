"""This package compares samplers with the truth on problems far too large to enumerate.

If the language model is a hidden Markov model itself, the constraint's automaton times the model is
again a Markov chain, so evidence and posterior are sums that dynamic programming does at any
length: calls of real tools, sentences of sixty tokens.

    truth       log P(C within n), and the posterior probability of events, both exact
    mismatch    worse models of the same text, for methods that look ahead
    problem     what a problem is; `tools` and `sentences` have them
    task        `+task=convergence_scale`: every method on every problem
"""
