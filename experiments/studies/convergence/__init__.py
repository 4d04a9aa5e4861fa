"""Convergence study (`+task=convergence`): particles needed to sample from the exact posterior.

On small problems the posterior p_lm(x | x in C, |x| <= n) can be computed exactly by summing over
all tokenizations, and every method is compared with it; docs/convergence.md has the results. The
modules in reading order:

    problems    a prompt, a constraint and a budget; also read from a file
    builtin     the ten built-in problems
    tree        all token prefixes that can be completed in time, counted before they are built
    evaluate    the language model's distributions at all prefixes
    exact       evidence, posterior and the law of a single sample, by sums over the tree
    visited     free continuations, with the language model's distributions after their prefixes
    clones      an HMM whose states are clusters of these prefixes
    hmm         the HMM for P-GCD: distilled from free continuations, or given
    sampler     the library's samplers on the tree: thousands of runs without a model
    methods     the compared methods on the tree
    measures    distances of runs from the exact posterior, with intervals
    task        the whole study in order, resumable
    headline    summary figures: particles needed, harm by more particles, equal reads
    report      table, summary and `figures`

`config` has the settings of the task.
"""
