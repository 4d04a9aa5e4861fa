"""`+task=convergence` asks how many particles it takes to sample from the model's own distribution.

On small problems the exact posterior p_lm(x | x in C, |x| <= n) can be summed up over all
tokenisations, and every method of this library is measured against it; docs/convergence.md tells
what came out. To read in this order:

    problems    what is asked: a prompt, a constraint, a budget; a file of one's own
    builtin     the ten problems that come with it
    tree        all token prefixes that can be completed in time, counted before they are built
    evaluate    the language model, asked once at each of them
    exact       the truth by sums over the tree: evidence, posterior, the law of a single sample
    visited     free continuations, and what the language model says after each of their prefixes
    clones      an HMM whose states are these prefixes, clustered
    hmm         what P-GCD looks ahead with: distilled on the spot so, or given
    sampler     the library's samplers on the tree: thousands of runs without a model
    methods     the methods that are compared, on the tree
    measures    how far runs are from the truth, with intervals
    task        all of it in order, resumable
    headline    what sums it up: particles needed, harm by more of them, equal reads
    report      table, summary and `figures`

`config` holds the settings of the task.
"""
